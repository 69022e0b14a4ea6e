//! `torchspy send`: sends what waits in the spool.

use crate::cli::failure::Failure;
use crate::cli::messages;
use crate::cli::objects::block_on;
use crate::cli::objects::sender::send_on;
use crate::cli::objects::spool::Spool;
use crate::cli::output_file::cannot_write;
use crate::cli::plan::SendPlan;
use crate::os::priority;
use std::process::ExitCode;

/// How far behind the nice value of a trainer on the same machine.
const NICE: i32 = 10;

pub(crate) fn run(plan: &SendPlan) -> Result<ExitCode, Failure> {
    priority::run_behind(NICE);
    let spool = Spool::new(plan.spool.as_deref())?;
    let left = spool
        .left()
        .map_err(|error| cannot_write(spool.folder(), error))?;
    let shown = spool.folder().display();
    if left.in_use > 0 {
        messages::note(&format!(
            "{} in {shown} are being recorded or sent by another torchspy",
            left.in_use
        ));
    } else if left.entries.is_empty() && left.without_address.is_empty() {
        messages::note(&format!("nothing is left in {shown}"));
    }
    for recording in &left.without_address {
        messages::failed(
            &Failure::message(format!(
                "{}: where it goes is not known",
                recording.display()
            ))
            .hint("the file of the same name with .send is damaged; copy the recording by other means"),
        );
    }
    let mut failures = left.without_address.len();
    block_on(async {
        for entry in left.entries {
            let recording = entry.recording.clone();
            match send_on(entry).await {
                Ok(Some(address)) => messages::note(&format!("sent {address}")),
                Ok(None) => {}
                Err(failure) => {
                    failures += 1;
                    messages::failed(&failure);
                    messages::note(&format!("{} stays there", recording.display()));
                }
            }
        }
    })?;
    Ok(match failures {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
