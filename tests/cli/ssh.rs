//! `torchspy dump --hosts` over the real ssh, to an sshd of the test's own.

use crate::dump_job::ranks;
use crate::faults::{TORCHSPY, output_of};
use crate::installed::debian;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// The servers' and the client's keys and settings, in a folder, and the client's port.
struct Ssh {
    folder: tempfile::TempDir,
    port: u16,
}

impl Ssh {
    /// Serves with the user's shell, as long as the test runs.
    fn start() -> Option<Self> {
        let sshd = debian("sshd", "openssh-server")?;
        let keygen = debian("ssh-keygen", "openssh-client")?;
        // As root it must be there, empty: Debian's service makes it.
        let privileges = Path::new("/run/sshd");
        if nix::unistd::geteuid().is_root() && !privileges.exists() {
            fs::DirBuilder::new()
                .mode(0o755)
                .create(privileges)
                .unwrap();
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let new = Self {
            port: listener.local_addr().unwrap().port(),
            folder: tempfile::tempdir().unwrap(),
        };
        for key in ["server", "user"] {
            let made = Command::new(&keygen)
                .args(["-q", "-t", "ed25519", "-N", "", "-f", &new.path(key)])
                .status();
            assert!(made.unwrap().success());
        }
        new.write(
            "sshd",
            &format!(
                "HostKey {}\nAuthorizedKeysFile {}\nPasswordAuthentication no\n\
                 UsePAM no\nStrictModes no\nPidFile none\nBanner {}\n",
                new.path("server"),
                new.path("user.pub"),
                new.path("banner"),
            ),
        );
        new.write("banner", "Authorized use only\n");
        let key = fs::read_to_string(new.path("server.pub")).unwrap();
        new.write("known", &format!("[127.0.0.1]:{} {key}", new.port));
        let settings = new.path("sshd");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream: TcpStream = stream.unwrap();
                // As inetd: a server for each connection.
                let _ = Command::new(&sshd)
                    .args(["-i", "-f", &settings])
                    .stdin(Stdio::from(OwnedFd::from(stream.try_clone().unwrap())))
                    .stdout(Stdio::from(OwnedFd::from(stream)))
                    .stderr(Stdio::null())
                    .spawn();
            }
        });
        new.client();
        Some(new)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// The real client, which reads settings of the test in place of the user's.
    fn client(&self) {
        let host = |name: &str, port: u16, known: &str| {
            format!(
                "Host {name}\n HostName 127.0.0.1\n Port {port}\n IdentityFile {}\n\
                 IdentitiesOnly yes\n UserKnownHostsFile {known}\n",
                self.path("user")
            )
        };
        // Nobody listens to port 1 (tcpmux, which is no longer used).
        let hosts = [
            host("node1", self.port, &self.path("known")),
            host("stranger", self.port, "/dev/null"),
            host("gone", 1, &self.path("known")),
        ];
        self.write("config", &hosts.concat());
        let bin = self.folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let script = format!(
            "#!/bin/sh\nexec /usr/bin/ssh -F {} \"$@\"\n",
            self.path("config")
        );
        fs::write(bin.join("ssh"), script).unwrap();
        fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn dump(&self, arguments: &[&str]) -> Command {
        let path = format!(
            "{}/bin:{}",
            self.folder.path().display(),
            std::env::var("PATH").unwrap()
        );
        let mut command = Command::new(TORCHSPY);
        command.arg("dump").args(arguments).env("PATH", path);
        command
    }
}

#[test]
fn hosts_answer_over_ssh_and_others_say_why_they_do_not() {
    let Some(ssh) = Ssh::start() else { return };
    let Some((_target, job)) = ranks(3, "ssh", &[]) else {
        return;
    };
    let hosts = "node1,stranger,gone";
    let options = ["--hosts", hosts, "--job", &job, "--timeout", "4m"];
    let output = output_of(ssh.dump(&options).args(["--program", TORCHSPY]));
    assert!(output.status.success(), "{}", output.stderr);
    for line in [
        "3 ranks on 1 machine",
        "rank 2 (on node1) differs: waits: read at waiting_ranks.py:",
        "no answer from stranger: Host key verification failed.",
        "no answer from gone: ssh: connect to host 127.0.0.1 port 1: Connection refused",
    ] {
        assert!(output.stdout.contains(line), "{line}\n{}", output.stdout);
    }
    // A program with a space in its name reaches the shell on the other side as one word.
    let odd = ssh.folder.path().join("my tools");
    fs::create_dir(&odd).unwrap();
    std::os::unix::fs::symlink(TORCHSPY, odd.join("torchspy")).unwrap();
    let odd = odd.join("torchspy");
    let options = ["--hosts", "node1", "--job", &job, "--timeout", "4m"];
    let output = output_of(
        ssh.dump(&options)
            .args(["--program", odd.to_str().unwrap()]),
    );
    assert!(output.stdout.contains("3 ranks on"), "{}", output.stderr);
    let missing = ["--hosts", "node1", "--program", "/does/not/exist"];
    let output = output_of(&mut ssh.dump(&missing));
    assert!(
        output
            .stderr
            .contains("/does/not/exist: No such file or directory")
            && output
                .stderr
                .contains("hint: torchspy must run there: --program PATH"),
        "{}",
        output.stderr
    );
}
