//! The command that runs torchspy on a host: ssh, srun, kubectl, whatever started the job.

use super::failure::Failure;
use crate::os::host::host_name;

/// A command line with `{host}` in it, and what it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transport {
    /// The command that reaches a host, with `{host}` where its name belongs.
    via: Vec<String>,
    /// torchspy and its arguments.
    words: Vec<String>,
    /// The name of this machine, and what is run on it in place of the above.
    here: Option<(String, Vec<String>)>,
}

/// torchspy, where `--program` names no other.
pub(super) const PROGRAM: &str = "torchspy";
/// Replaced by the name of a host.
const HOST: &str = "{host}";

impl Transport {
    /// By a command of the user's.
    pub(super) fn new(via: &str, words: Vec<String>) -> Result<Self, Failure> {
        let example = "for example --via 'kubectl exec {host} --' or --via 'srun --jobid 42 --overlap -N1 -n1 -w {host}'";
        let Some(via) = split(via) else {
            let text = format!("--via {via} has a quotation mark without its other half");
            return Err(Failure::usage(text, example));
        };
        let names_host = via.iter().any(|word| word.contains(HOST));
        if !names_host || via.first().is_some_and(|word| word.contains(HOST)) {
            return Err(Failure::usage(
                "--via is a command with {host} where a host's name belongs",
                example,
            ));
        }
        Ok(Self {
            via,
            words,
            here: None,
        })
    }

    /// By ssh, which asks for nothing: there is one terminal, and many hosts. This machine, which
    /// need not admit itself, is asked without it: by this torchspy where no other is named.
    pub(super) fn ssh(words: Vec<String>) -> Result<Self, Failure> {
        // The shell on the other side splits what it gets into words.
        let split = words.iter().map(|word| quoted(word)).collect();
        let mut own = words;
        if let (Some(program), Ok(this)) = (own.first_mut(), std::env::current_exe())
            && program == PROGRAM
        {
            *program = this.to_string_lossy().into_owned();
        }
        Ok(Self {
            here: Some((host_name(), own)),
            ..Self::new("ssh -o BatchMode=yes -o ConnectTimeout=5 {host} --", split)?
        })
    }

    /// By a step of a Slurm job, which shares the CPUs of those that run.
    pub(super) fn slurm(job: &str, words: Vec<String>) -> Result<Self, Failure> {
        let is_id = |byte: u8| byte.is_ascii_alphanumeric() || b"_+.[]".contains(&byte);
        if job.is_empty() || !job.bytes().all(is_id) {
            return Err(Failure::usage(
                format!("`{job}` is no id of a Slurm job"),
                format!(
                    "--job 4711; where Slurm did not start the job: --all-trainers --job {job} on its machine, or --hosts HOST,HOST"
                ),
            ));
        }
        Self::new(
            &format!("srun --jobid={job} --overlap --nodes=1 --ntasks=1 --nodelist={{host}}"),
            words,
        )
    }

    /// The command for one host.
    pub(super) fn command(&self, host: &str) -> Vec<String> {
        if let Some((_, own)) = self.here.as_ref().filter(|(here, _)| here == host) {
            return own.clone();
        }
        let via = self.via.iter().map(|word| word.replace(HOST, host));
        via.chain(self.words.iter().cloned()).collect()
    }

    /// The same for a machine that does not ask NCCL.
    pub(super) fn without_ras(mut self) -> Self {
        let option = "--no-ras";
        let own = self.here.as_mut().map(|(_, own)| own);
        for words in own.into_iter().chain([&mut self.words]) {
            if !words.iter().any(|word| word == option) {
                words.push(option.to_owned());
            }
        }
        self
    }
}

/// A word as a POSIX shell reads it back.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,@+%".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Words as a POSIX shell splits them, without expansions; `None` if a quotation does not end.
fn split(text: &str) -> Option<Vec<String>> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next()? {
                        '\'' => break,
                        inner => word.push(inner),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next()? {
                        '"' => break,
                        '\\' => word.push(characters.next()?),
                        inner => word.push(inner),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(characters.next()?),
            space if space.is_whitespace() => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn words_are_split_as_a_shell_does() {
        let found = split(r#"sh -c 'echo "$0"' "a \"b\"" c\ d '' "#).unwrap();
        assert_eq!(
            found,
            ["sh", "-c", "echo \"$0\"", "a \"b\"", "c d", ""].map(str::to_owned)
        );
        assert_eq!(split("a 'b"), None);
        assert_eq!(split("a \"b"), None);
    }

    #[test]
    fn the_command_of_a_host_has_its_name_and_what_to_run() {
        let of = |transport: Transport| transport.command("node1").join(" ");
        let dump = || words("torchspy dump --json");
        let via = Transport::new("kubectl exec {host} --", dump()).unwrap();
        assert_eq!(of(via), "kubectl exec node1 -- torchspy dump --json");
        let ssh = Transport::ssh(vec!["/opt/my tools/torchspy".to_owned()]).unwrap();
        assert!(of(ssh).ends_with("node1 -- '/opt/my tools/torchspy'"));
        let slurm = Transport::slurm("4711", dump()).unwrap();
        assert!(
            of(slurm)
                .contains("--jobid=4711 --overlap --nodes=1 --ntasks=1 --nodelist=node1 torch")
        );
        for wrong in ["ssh", "{host}", "ssh '{host}"] {
            let failure = Transport::new(wrong, dump()).unwrap_err();
            assert!(failure.status == 2 && failure.hint.is_some(), "{wrong}");
        }
        assert!(Transport::slurm("--x", dump()).is_err());
    }
}
