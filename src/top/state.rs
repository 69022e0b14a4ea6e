//! The user's choices, and the effect of keys on them. Needs no terminal.
//!
//! Keys are htop's and py-spy's where these have an equivalent (htop(1); `?` of py-spy top): 1 to 4
//! sort by a column, `L` turns to lines, `R` resets (py-spy); Tab changes the view, F3 and `/` or
//! F4 and `\` search, F6, `<` and `>` sort, `+` and `-` fold, Z pauses, F1, `h` and `?` help, F10
//! and `q` quit (htop).

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::BTreeSet;

/// What a body shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    Functions,
    Lines,
    Native,
    Operators,
    /// Modules, as a tree.
    Modules,
    Phases,
    Threads,
    Processes,
}

impl View {
    /// In the order of the tabs.
    pub const ALL: [Self; 8] = [
        Self::Functions,
        Self::Lines,
        Self::Native,
        Self::Operators,
        Self::Modules,
        Self::Phases,
        Self::Threads,
        Self::Processes,
    ];

    /// The tab's title, and its key.
    pub fn title(self) -> (&'static str, char) {
        match self {
            Self::Functions => ("Functions", 'F'),
            Self::Lines => ("Lines", 'L'),
            Self::Native => ("Native", 'n'),
            Self::Operators => ("Operators", 'o'),
            Self::Modules => ("Modules", 'm'),
            Self::Phases => ("Phases", 'a'),
            Self::Threads => ("Threads", 't'),
            Self::Processes => ("Processes", 'P'),
        }
    }

    fn at(self) -> usize {
        Self::ALL.iter().position(|view| *view == self).unwrap_or(0)
    }
}

/// Sort order of tables of time: py-spy's four columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Own time now.
    OwnNow,
    /// Total time now.
    TotalNow,
    /// Own time since the start.
    OwnSince,
    /// Total time since the start.
    TotalSince,
}

impl Sort {
    /// In the order of the columns.
    pub const ALL: [Self; 4] = [
        Self::OwnNow,
        Self::TotalNow,
        Self::OwnSince,
        Self::TotalSince,
    ];

    pub fn at(self) -> usize {
        Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0)
    }
}

/// A key's effect outside of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// End.
    Quit,
    /// Reset the sums since the start.
    Reset,
    /// Start a recording, or end the one under way.
    Record,
    /// A flamegraph of the last minute.
    Flamegraph,
    /// Give the terminal back for a while (Ctrl-Z).
    Suspend,
    /// Draw all of the screen anew (Ctrl-L).
    Redraw,
}

#[derive(Clone, Debug)]
pub struct State {
    pub view: View,
    /// The order of tables of time.
    pub sort: Sort,
    /// Only rows that contain this, ignoring case.
    pub filter: String,
    /// Whether typed characters go to the filter.
    pub typing: bool,
    /// Whether the view is frozen.
    pub paused: bool,
    pub help: bool,
    pub selected: usize,
    /// The first row on the screen.
    pub offset: usize,
    /// The process whose figures are shown; `None` for the job's first training process.
    pub process: Option<i32>,
    /// Branches of the module tree that the user opened or closed.
    pub toggled: BTreeSet<String>,
    /// Shown on the last line.
    pub message: Option<String>,
    /// Rows of the table that was last drawn, their keys, and how many of them fit.
    pub drawn: Drawn,
}

/// The part of a table that was on the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drawn {
    /// Keys of all rows.
    pub keys: Vec<RowKey>,
    /// Number of rows that fit.
    pub height: usize,
}

/// The subject of a row, if a key acts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowKey {
    None,
    /// A branch of the tree, by its path, and whether it is open.
    Branch(String, bool),
    /// A process by its pid.
    Process(i32),
}

impl Default for State {
    fn default() -> Self {
        Self {
            view: View::Functions,
            sort: Sort::OwnNow,
            filter: String::new(),
            typing: false,
            paused: false,
            help: false,
            selected: 0,
            offset: 0,
            process: None,
            toggled: BTreeSet::new(),
            message: None,
            drawn: Drawn::default(),
        }
    }
}

impl State {
    /// Applies a key.
    pub fn key(&mut self, key: KeyEvent) -> Option<Command> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control {
            return match key.code {
                KeyCode::Char('c' | 'C') => Some(Command::Quit),
                KeyCode::Char('z' | 'Z') => Some(Command::Suspend),
                KeyCode::Char('l' | 'L') => Some(Command::Redraw),
                _ => None,
            };
        }
        if self.typing {
            self.typed(key.code);
            return None;
        }
        if self.help {
            self.help = false;
            return None;
        }
        self.message = None;
        self.pressed(key.code)
    }

    fn typed(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            _ => {}
        }
        (self.selected, self.offset) = (0, 0);
    }

    fn pressed(&mut self, code: KeyCode) -> Option<Command> {
        match code {
            KeyCode::Char('q') | KeyCode::F(10) => return Some(Command::Quit),
            KeyCode::Char('R') => return Some(Command::Reset),
            KeyCode::Char('r') => return Some(Command::Record),
            KeyCode::Char('f') => return Some(Command::Flamegraph),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('/' | '\\') | KeyCode::F(3 | 4) => self.typing = true,
            KeyCode::Esc => {
                self.filter.clear();
                (self.selected, self.offset) = (0, 0);
            }
            KeyCode::Char('z' | 'Z' | 'p') => self.paused = !self.paused,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(View::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='4') => {
                self.sort = Sort::ALL[usize::from(digit as u8 - b'1')];
            }
            KeyCode::F(6) | KeyCode::Char('>' | '.') => self.sort_by(1),
            KeyCode::Char('<' | ',') => self.sort_by(Sort::ALL.len() - 1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-(self.page() as isize)),
            KeyCode::PageDown => self.step(self.page() as isize),
            KeyCode::Home => (self.selected, self.offset) = (0, 0),
            KeyCode::End => self.selected = self.drawn.keys.len().saturating_sub(1),
            KeyCode::Enter | KeyCode::Char(' ') => self.choose(None),
            KeyCode::Char('+' | '=') => self.choose(Some(true)),
            KeyCode::Char('-') => self.choose(Some(false)),
            KeyCode::Char('l') => self.show(View::Lines),
            KeyCode::Char(letter) => {
                let view = View::ALL.into_iter().find(|view| view.title().1 == letter);
                if let Some(view) = view {
                    self.show(view);
                }
            }
            _ => {}
        }
        None
    }

    fn turn(&mut self, by: usize) {
        self.show(View::ALL[(self.view.at() + by) % View::ALL.len()]);
    }

    /// `L` goes back and forth between functions and lines, as in py-spy.
    fn show(&mut self, view: View) {
        let again = self.view == view && view == View::Lines;
        self.view = if again { View::Functions } else { view };
        (self.selected, self.offset) = (0, 0);
    }

    fn sort_by(&mut self, by: usize) {
        self.sort = Sort::ALL[(self.sort.at() + by) % Sort::ALL.len()];
    }

    fn page(&self) -> usize {
        self.drawn.height.max(1)
    }

    fn step(&mut self, by: isize) {
        let last = self.drawn.keys.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    /// Opens or closes a branch, or shows a process.
    fn choose(&mut self, open: Option<bool>) {
        match self.drawn.keys.get(self.selected).cloned() {
            Some(RowKey::Branch(path, is_open)) if open != Some(is_open) => {
                self.turn_branch(path);
            }
            Some(RowKey::Process(pid)) if open.is_none() => {
                self.process = Some(pid);
                self.show(View::Functions);
            }
            _ => {}
        }
    }

    fn turn_branch(&mut self, path: String) {
        if !self.toggled.remove(&path) {
            self.toggled.insert(path);
        }
    }

    /// Keeps the selection within a table of `keys`, of which `height` rows fit, and in sight.
    pub fn fit(&mut self, keys: Vec<RowKey>, height: usize) {
        self.selected = self.selected.min(keys.len().saturating_sub(1));
        let height = height.max(1);
        let lowest = (self.selected + 1).saturating_sub(height);
        self.offset = self.offset.clamp(lowest, self.selected);
        self.offset = self.offset.min(keys.len().saturating_sub(height));
        self.drawn = Drawn { keys, height };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(state: &mut State, keys: &str) -> Option<Command> {
        let mut last = None;
        for letter in keys.chars() {
            let code = match letter {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '\u{1b}' => KeyCode::Esc,
                '\u{8}' => KeyCode::Backspace,
                'v' => KeyCode::Down,
                '^' => KeyCode::Up,
                other => KeyCode::Char(other),
            };
            last = state.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        last
    }

    #[test]
    fn views_are_chosen_by_letter_and_by_tab() {
        let mut state = State::default();
        for view in View::ALL {
            press(&mut state, &view.title().1.to_string());
            assert_eq!(state.view, view);
        }
        press(&mut state, "\t");
        assert_eq!(state.view, View::Functions);
        press(&mut state, "LL");
        assert_eq!(state.view, View::Functions, "as in py-spy");
    }

    #[test]
    fn what_is_typed_goes_to_the_filter_and_not_to_commands() {
        let mut state = State::default();
        assert_eq!(press(&mut state, "/qqR\u{8}\n"), None);
        assert_eq!((state.filter.as_str(), state.typing), ("qq", false));
        assert_eq!(press(&mut state, "q"), Some(Command::Quit));
        press(&mut state, "\u{1b}");
        assert_eq!(state.filter, "");
    }

    #[test]
    fn control_c_ends_it_whatever_is_shown() {
        for keys in ["", "/abc", "?"] {
            let mut state = State::default();
            press(&mut state, keys);
            let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
            assert_eq!(state.key(key), Some(Command::Quit), "{keys}");
        }
    }

    #[test]
    fn any_key_leaves_the_help_and_nothing_else() {
        let mut state = State::default();
        assert_eq!(press(&mut state, "?q"), None);
        assert!(!state.help);
        assert_eq!(press(&mut state, "q"), Some(Command::Quit));
    }

    #[test]
    fn columns_sort_as_in_py_spy() {
        let mut state = State::default();
        press(&mut state, "4");
        assert_eq!(state.sort, Sort::TotalSince);
        press(&mut state, ">");
        assert_eq!(state.sort, Sort::OwnNow);
        press(&mut state, "<");
        assert_eq!(state.sort, Sort::TotalSince);
    }

    #[test]
    fn the_selection_stays_in_the_table_and_in_sight() {
        let mut state = State::default();
        state.fit(vec![RowKey::None; 30], 10);
        press(&mut state, "^");
        assert_eq!((state.selected, state.offset), (0, 0));
        for _ in 0..15 {
            press(&mut state, "v");
            state.fit(vec![RowKey::None; 30], 10);
        }
        assert_eq!((state.selected, state.offset), (15, 6));
        state.fit(vec![RowKey::None; 3], 10);
        assert_eq!((state.selected, state.offset), (2, 0));
        state.fit(Vec::new(), 0);
        assert_eq!((state.selected, state.offset), (0, 0));
    }

    #[test]
    fn branches_fold_and_processes_are_shown() {
        let mut state = State::default();
        state.fit(vec![RowKey::Branch("Net".to_owned(), true)], 10);
        press(&mut state, "+");
        assert!(state.toggled.is_empty(), "it is open");
        press(&mut state, "-");
        assert!(state.toggled.contains("Net"));
        press(&mut state, "\n");
        assert!(state.toggled.is_empty());
        state.fit(vec![RowKey::Process(7)], 10);
        press(&mut state, "\n");
        assert_eq!(state.process, Some(7));
    }
}
