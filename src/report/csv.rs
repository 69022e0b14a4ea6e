//! Tables as CSV (RFC 4180, lines end in a line feed): the first line has the keys, which are those
//! of the JSON.
//!
//! A share with an interval has four columns: `KEY`, `KEY_low`, `KEY_high`, `KEY_samples`; a source
//! line has `file` and `line`. A null of the JSON is empty. Numbers are written in full.

use super::table::{Kind, Sheet, Value};

/// A table as CSV.
pub fn render(sheet: &Sheet) -> String {
    let mut out = String::new();
    let heads = sheet.columns.iter().flat_map(|&(key, kind)| match kind {
        Kind::Share => ["", "_low", "_high", "_samples"]
            .map(|end| format!("{key}{end}"))
            .to_vec(),
        Kind::Place => vec!["file".to_owned(), "line".to_owned()],
        _ => vec![key.to_owned()],
    });
    line(&mut out, heads);
    for row in &sheet.rows {
        let cells = row.iter().zip(&sheet.columns);
        line(
            &mut out,
            cells.flat_map(|(value, &(_, kind))| fields(value, kind)),
        );
    }
    out
}

fn line(out: &mut String, fields: impl Iterator<Item = String>) {
    out.push_str(&fields.collect::<Vec<_>>().join(","));
    out.push('\n');
}

/// The fields of a value: as many as its column has.
fn fields(value: &Value, kind: Kind) -> Vec<String> {
    let mut fields = match value {
        Value::None => vec![String::new()],
        Value::Number(number) => vec![number.to_string()],
        Value::Count(count) => vec![count.to_string()],
        Value::Flag(flag) => vec![flag.to_string()],
        Value::Share(share) => vec![
            share.value.to_string(),
            share.low.to_string(),
            share.high.to_string(),
            share.samples.to_string(),
        ],
        Value::Text(text) => vec![field(text)],
        Value::Place(file, 0) => vec![field(file), String::new()],
        Value::Place(file, line) => vec![field(file), line.to_string()],
    };
    let width = match kind {
        Kind::Share => 4,
        Kind::Place => 2,
        _ => 1,
    };
    fields.resize(width, String::new());
    fields
}

/// A text as a field: control characters are removed, and it is quoted if needed. A text that a
/// spreadsheet would take for a formula is prefixed with an apostrophe.
pub fn field(text: &str) -> String {
    let mut text: String = text.chars().filter(|c| !c.is_control()).collect();
    if text.starts_with(['=', '+', '-', '@']) {
        text.insert(0, '\'');
    }
    if text.contains(['"', ',', ';']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::intervals::Share;
    use crate::report::table::Column;

    #[test]
    fn texts_stay_in_their_field() {
        assert_eq!(field("GPU-8d2c"), "GPU-8d2c");
        assert_eq!(field("a,b\n\"c\""), "\"a,b\"\"c\"\"\"");
        assert_eq!(field("=1+1"), "'=1+1");
    }

    #[test]
    fn every_row_has_a_field_for_every_heading() {
        struct Row(Option<Share>, Option<u32>);
        let columns: &[Column<Row>] = &[
            Column::new(Kind::Share, "share", "share", |row| row.0.into()),
            Column::new(Kind::Place, "at", "at", |row| match row.1 {
                Some(line) => Value::Place("a,b.py".to_owned(), line),
                None => Value::None,
            }),
            Column::words("for people alone", |_| "not in a file".into()),
            Column::data(Kind::Seconds, "self_s", |_| 1.5e-9.into()),
        ];
        let share = Share {
            value: 0.5,
            low: 0.25,
            high: 0.75,
            samples: 40,
        };
        let rows = [Row(Some(share), Some(7)), Row(None, None)];
        assert_eq!(
            render(&Sheet::new(columns, &rows)),
            "share,share_low,share_high,share_samples,file,line,self_s\n\
             0.5,0.25,0.75,40,\"a,b.py\",7,0.0000000015\n\
             ,,,,,,0.0000000015\n"
        );
    }
}
