//! Programs whose short options take secrets.

/// An option of some programs.
#[derive(Debug)]
pub(super) struct SecretOption {
    programs: &'static [&'static str],
    /// The word that has to come first.
    subcommand: Option<&'static str>,
    flag: &'static str,
    /// The value may be the next argument (otherwise it follows without a space: `mysql -pX`).
    pub(super) is_apart: bool,
    /// The first word that is not an option ends it: what follows belongs to another program.
    pub(super) wraps: bool,
}

const OPTIONS: &[SecretOption] = &[
    SecretOption {
        programs: &["sshpass"],
        subcommand: None,
        flag: "-p",
        is_apart: true,
        wraps: true,
    },
    SecretOption {
        programs: &[
            "mysql",
            "mysqldump",
            "mysqladmin",
            "mysqlimport",
            "mariadb",
            "7z",
            "7za",
            "7zz",
        ],
        subcommand: None,
        flag: "-p",
        is_apart: false,
        wraps: false,
    },
    SecretOption {
        programs: &["mongo", "mongosh", "mongodump", "mongorestore"],
        subcommand: None,
        flag: "-p",
        is_apart: true,
        wraps: false,
    },
    SecretOption {
        programs: &["redis-cli", "valkey-cli"],
        subcommand: None,
        flag: "-a",
        is_apart: true,
        wraps: false,
    },
    SecretOption {
        programs: &["ldapsearch", "ldapadd", "ldapmodify", "ldapwhoami"],
        subcommand: None,
        flag: "-w",
        is_apart: true,
        wraps: false,
    },
    SecretOption {
        programs: &["sqlcmd", "bcp", "isql", "zip", "unzip"],
        subcommand: None,
        flag: "-P",
        is_apart: true,
        wraps: false,
    },
    SecretOption {
        programs: &[
            "docker", "podman", "nerdctl", "skopeo", "oras", "helm", "az", "oc",
        ],
        subcommand: Some("login"),
        flag: "-p",
        is_apart: true,
        wraps: false,
    },
    SecretOption {
        programs: &["lftp"],
        subcommand: None,
        flag: "-u",
        is_apart: true,
        wraps: false,
    },
    // A positional one.
    SecretOption {
        programs: &["wandb"],
        subcommand: Some("login"),
        flag: "",
        is_apart: true,
        wraps: false,
    },
];

impl SecretOption {
    /// The option of the program that `word` names, or that `before` names if a subcommand is
    /// needed.
    pub(super) fn of(word: &str, before: &str) -> Option<&'static Self> {
        let name = |word: &'_ str| word.rsplit('/').next().unwrap_or_default().to_owned();
        let (own, before) = (name(word), name(before));
        OPTIONS.iter().find(|option| match option.subcommand {
            None => option.programs.contains(&own.as_str()),
            Some(wanted) => word == wanted && option.programs.contains(&before.as_str()),
        })
    }

    /// What follows this option's flag in `word`; `Some("")` if the value is the next argument.
    pub(super) fn value_in<'w>(&self, word: &'w str) -> Option<&'w str> {
        let value = match self.flag {
            "" => (!word.starts_with('-')).then_some(word)?,
            flag => word.strip_prefix(flag)?,
        };
        (self.is_apart || !value.is_empty()).then_some(value)
    }

    /// The flag, as it is shown before a value that is hidden.
    pub(super) fn flag(&self) -> &'static str {
        self.flag
    }
}
