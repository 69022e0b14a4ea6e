//! The command line: arguments, plans, progress and the subcommands.
