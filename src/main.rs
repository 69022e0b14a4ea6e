//! The torchspy command.

fn main() -> std::process::ExitCode {
    torchspy::cli::run(std::env::args_os())
}
