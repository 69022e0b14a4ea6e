//! Starts the collector threads: one that opens the driver's library, one per device, one for the
//! host.

use super::batch::Batch;
use super::device_thread::{Channels, DeviceThread};
use super::feed::{Shared, TrackFeed};
use super::host::HostThread;
use super::nvml::NvmlSource;
use super::select::GpuChoice;
use super::{Found, GpuDevice, GpuError, GpuErrorKind, GpuSource};
use crate::model::track::CounterTracks;
use crate::os::clock::monotonic_ns;
use crate::os::priority::run_behind;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

/// Capacity of the channel, in batches.
const BATCHES: usize = 512;

/// How long [`check`] waits for the driver to list its devices.
const CHECK_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuOptions {
    pub choice: GpuChoice,
    /// NVML's library; `None` for where the system has it.
    pub library: Option<PathBuf>,
}

/// Starts collecting: figures of the host each `host_period`. The driver is opened on a separate
/// thread, so that its start blocks nothing.
///
/// # Errors
/// No thread can be started.
pub fn start(options: GpuOptions, host_period: Duration) -> io::Result<TrackFeed> {
    let (batches, received) = bounded(BATCHES);
    let (stop, stopped) = bounded(0);
    let shared = Arc::<Shared>::default();
    let starter = Starter {
        options,
        batches,
        stop: stopped,
        shared: shared.clone(),
        began_ns: monotonic_ns(),
    };
    let host = HostThread::new(starter.ends(), host_period);
    Builder::new()
        .name("torchspy-host".to_owned())
        .spawn(move || {
            run_behind(0);
            host.run();
        })?;
    Builder::new()
        .name("torchspy-gpu".to_owned())
        .spawn(move || {
            run_behind(0);
            starter.run();
        })?;
    Ok(TrackFeed::new(shared, received, stop))
}

/// Why the requested devices or library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The library that was named cannot be loaded.
    #[error("{0}")]
    Library(GpuError),
    /// GPUs were named, and the driver is not available.
    #[error("--gpu names GPUs, and none is available: {0}")]
    NoDriver(GpuError),
    #[error("there is no GPU {name} here")]
    NoSuchGpu {
        name: String,
        /// Those that there are: number, name, UUID.
        known: Vec<String>,
    },
}

/// Checks before the start that the named devices and library exist. Returns `Ok` if none were
/// named, or if the driver takes longer than 5 s.
///
/// # Errors
/// See [`CheckError`].
pub fn check(options: &GpuOptions) -> Result<(), CheckError> {
    let named = match &options.choice {
        GpuChoice::List(names) => names.clone(),
        _ if options.library.is_some() => Vec::new(),
        _ => return Ok(()),
    };
    let (sender, receiver) = bounded(1);
    let library = options.library.clone();
    let asked = Builder::new()
        .name("torchspy-gpu".to_owned())
        .spawn(move || {
            let known = NvmlSource::open(library.as_deref()).and_then(|source| {
                let found = source.devices()?;
                let infos = found.devices.iter().map(|device| device.info().clone());
                Ok(infos.collect::<Vec<_>>())
            });
            // The receiver is gone where the driver took too long.
            let _ = sender.send(known);
        });
    let Ok(Ok(known)) = asked.map(|_| receiver.recv_timeout(CHECK_PATIENCE)) else {
        return Ok(());
    };
    let known = match known {
        Ok(known) => known,
        Err(error) if error.kind == GpuErrorKind::Unsupported && options.library.is_some() => {
            return Err(CheckError::Library(error));
        }
        Err(error) if !named.is_empty() => return Err(CheckError::NoDriver(error)),
        Err(_) => return Ok(()),
    };
    match named
        .iter()
        .find(|name| !known.iter().any(|gpu| name.is_of(gpu)))
    {
        None => Ok(()),
        Some(name) => Err(CheckError::NoSuchGpu {
            name: name.to_string(),
            known: known
                .iter()
                .map(|gpu| format!("{} {} {}", gpu.label(), gpu.name, gpu.uuid))
                .collect(),
        }),
    }
}

struct Starter {
    options: GpuOptions,
    batches: Sender<CounterTracks>,
    stop: Receiver<()>,
    shared: Arc<Shared>,
    began_ns: u64,
}

impl Starter {
    fn ends(&self) -> Channels {
        Channels {
            batches: self.batches.clone(),
            stop: self.stop.clone(),
            shared: self.shared.clone(),
        }
    }

    fn run(self) {
        let mut batch = Batch::new(None);
        if self.options.choice == GpuChoice::None {
            batch.gap(
                None,
                self.began_ns,
                0,
                "not asked for: --gpu none".to_owned(),
            );
        } else {
            let call = self.shared.call(None);
            call.begin();
            let found = self.devices();
            call.end();
            match found {
                Ok(Found { devices, missing }) => {
                    for reason in missing {
                        batch.gap(None, self.began_ns, 0, reason);
                    }
                    if devices.is_empty() {
                        batch.gap(None, self.began_ns, 0, "the driver has no GPU".to_owned());
                    }
                    self.start_devices(devices, &mut batch);
                }
                Err(error) => batch.gap(None, self.began_ns, 0, error.reason),
            }
        }
        batch.send(&self.batches);
    }

    fn devices(&self) -> Result<Found, GpuError> {
        NvmlSource::open(self.options.library.as_deref())?.devices()
    }

    fn start_devices(&self, devices: Vec<Box<dyn GpuDevice>>, batch: &mut Batch) {
        let choice = &self.options.choice;
        let wanted = |device: &dyn GpuDevice| match choice {
            GpuChoice::List(_) => choice.takes(device.info()),
            _ => true,
        };
        let devices: Vec<_> = devices
            .into_iter()
            .filter(|device| wanted(&**device))
            .collect();
        for device in devices {
            let label = device.info().label();
            let thread = DeviceThread::new(device, choice.clone(), self.ends(), self.began_ns);
            let started = Builder::new()
                .name(format!("torchspy-gpu{label}"))
                .spawn(move || {
                    run_behind(0);
                    thread.run();
                });
            if let Err(error) = started {
                let reason = format!("GPU {label}: no thread to ask it: {error}");
                batch.gap(None, self.began_ns, 0, reason);
            }
        }
    }
}
