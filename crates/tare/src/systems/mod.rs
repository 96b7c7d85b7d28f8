//! The systems: one folder each, with its subcommand, its drivers and their workloads. The only
//! place where the lab and the systems meet.

mod command;
pub(crate) mod cvm;
pub(crate) mod gateway;
mod gcm;
pub(crate) mod guest;
pub(crate) mod import;
pub(crate) mod load;
pub(crate) mod loadtest;
pub(crate) mod memory;
mod namespace;
mod port_kind;
pub(crate) mod rng;
mod synthetic;
mod vita;
pub(crate) mod workload;

use anyhow::anyhow;
use tare_lab::driver::{Driver, Drivers};
use tare_lab::value::Parameters;

use crate::agent::{Agent, TrialError};
use crate::machine::Machine;
use workload::{On, OwnDriver};

/// The drivers of this program for a machine: the one list of them.
pub(crate) fn on(machine: &Machine) -> Vec<Box<dyn OwnDriver>> {
    macro_rules! drivers {
        ($($workload:ty),* $(,)?) => {
            vec![$(Box::new(On::<$workload>::new(machine.clone()))),*]
        };
    }
    drivers![
        command::Command,
        rng::drivers::rdrand::Rdrand,
        rng::drivers::underflow::Underflow,
        rng::drivers::battery::Battery,
        gcm::driver::Gcm,
        gcm::race::GcmRace,
        gateway::driver::Gateway,
        guest::driver::GuestWorkload,
        guest::breakdown::GuestBreakdown,
        guest::syscalls::Syscalls,
        load::driver::Load,
        memory::driver::Farmem,
        memory::simulated::FarmemSimulated,
        cvm::driver::Cvmnet,
        cvm::breakdown::CvmnetBreakdown,
        cvm::race::CvmnetRace,
        cvm::wrk::CvmnetWrk,
        vita::Vita,
        vita::VitaVeth,
        synthetic::Synthetic,
    ]
}

/// Every driver of this program, on this machine.
pub(crate) fn all() -> Drivers {
    let own = on(&Machine::This).into_iter();
    Drivers::new(own.map(|driver| driver as Box<dyn Driver>).collect())
}

/// The names of the drivers, each with one line for people.
pub(crate) fn names() -> Vec<(String, String)> {
    let vocabularies = on(&Machine::This).into_iter().map(|one| one.vocabulary());
    vocabularies
        .map(|words| (words.name, words.about))
        .collect()
}

/// Plays a role of one trial of the driver of that name.
pub(crate) fn play(
    name: &str,
    role: Option<&str>,
    parameters: &Parameters,
    agent: &mut Agent,
) -> Result<(), TrialError> {
    let driver = on(&Machine::This)
        .into_iter()
        .find(|driver| driver.vocabulary().name == name)
        .ok_or_else(|| anyhow!("found driver \"{name}\", expected one with trials of its own"))?;
    driver.play(role, parameters, agent)
}

/// 64 bits from the operating system, for seeds.
pub(crate) fn system_random() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    let n = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    anyhow::ensure!(
        n == bytes.len(),
        "the operating system gave {n} random bytes of 8"
    );
    Ok(u64::from_ne_bytes(bytes))
}
