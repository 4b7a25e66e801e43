//! What the figures were measured on: every result file carries it, and `compare` warns when two
//! files differ in it.

use std::fs;

use serde::{Deserialize, Serialize};

/// The machine, its kernel, and the build that measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model, as the kernel names it.
    pub processor: String,
    /// Cores that are online.
    pub cores: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Kernel release and build.
    pub kernel: String,
    /// Whether softirq time is kept out of a process' CPU time (`CONFIG_IRQ_TIME_ACCOUNTING`);
    /// `None` where the kernel does not show its configuration.
    pub irq_time_accounting: Option<bool>,
    /// Version of this program.
    pub bench: String,
    /// Which hypervisor the machine runs under, empty on bare metal or where it does not say.
    pub hypervisor: String,
}

impl Machine {
    /// Reads the facts; what cannot be read is left empty, since no figure depends on it.
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory_kib = field(&meminfo, "MemTotal").and_then(|value| {
            value
                .split_whitespace()
                .next()
                .and_then(|number| number.parse::<u64>().ok())
        });
        Self {
            processor: field(&cpuinfo, "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_mib: memory_kib.unwrap_or_default() / 1024,
            kernel: kernel(),
            irq_time_accounting: irq_time_accounting(),
            bench: env!("CARGO_PKG_VERSION").to_owned(),
            hypervisor: fs::read_to_string("/sys/class/dmi/id/sys_vendor")
                .map(|name| name.trim().to_owned())
                .unwrap_or_default(),
        }
    }
}

/// The value of `name : value` in one of the kernel's lists.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

fn kernel() -> String {
    ["ostype", "osrelease", "version"]
        .iter()
        .filter_map(|name| fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok())
        .map(|text| text.trim().to_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// `/proc/config.gz` is compressed; `zcat` is on every machine that has it.
fn irq_time_accounting() -> Option<bool> {
    let output = std::process::Command::new("zcat")
        .arg("/proc/config.gz")
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout)
        .ok()
        .filter(|text| !text.is_empty())?;
    Some(
        text.lines()
            .any(|line| line == "CONFIG_IRQ_TIME_ACCOUNTING=y"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_field_of_a_kernel_list() {
        let text = "MemTotal:       2048 kB\nmodel name\t: A Processor\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A Processor"));
        assert_eq!(field(text, "MemTotal").as_deref(), Some("2048 kB"));
        assert_eq!(field(text, "absent"), None);
    }

    #[test]
    fn names_this_machine() {
        let machine = Machine::read();
        assert!(machine.cores > 0 && machine.memory_mib > 0);
        assert!(machine.kernel.starts_with("Linux "));
    }
}
