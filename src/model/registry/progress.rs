//! How far a pull is, on standard error: a bar on a terminal, else a line every tenth.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

pub(super) struct Progress {
    name: String,
    /// Only where standard error is a terminal.
    bar: Option<ProgressBar>,
    total: Option<u64>,
    tenths: u64,
}

impl Progress {
    pub(super) fn new(name: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner().with_prefix(name.to_owned());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { name: name.to_owned(), bar, total: None, tenths: 0 }
    }

    /// Says what goes on.
    pub(super) fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => {
                bar.suspend(|| eprintln!("{}: {text}", self.name));
            }
            None => eprintln!("{}: {text}", self.name),
        }
    }

    /// Begins to count bytes, `done` of them being here already.
    pub(super) fn bytes(&mut self, done: u64, total: Option<u64>) {
        let template = match total {
            Some(_) => "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            None => "{prefix} {spinner} {bytes} {bytes_per_sec}",
        };
        self.begin(template, done, total);
    }

    /// Begins to count packages.
    pub(super) fn packages(&mut self, total: usize) {
        self.begin("{prefix} {spinner} {pos}/{len} packages {elapsed}", 0, Some(total as u64));
    }

    fn begin(&mut self, template: &str, done: u64, total: Option<u64>) {
        self.total = total.filter(|total| *total > 0);
        self.tenths = self.total.map_or(0, |total| done.min(total) * 10 / total);
        if let Some(bar) = &self.bar {
            bar.set_style(ProgressStyle::with_template(template).expect("a constant template"));
            bar.set_length(total.unwrap_or(0));
            bar.set_position(done);
            bar.reset_eta();
        }
    }

    pub(super) fn at(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if let Some(total) = self.total {
            let tenths = done.min(total) * 10 / total;
            if tenths > self.tenths {
                self.tenths = tenths;
                eprintln!("{}: {} %", self.name, tenths * 10);
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
