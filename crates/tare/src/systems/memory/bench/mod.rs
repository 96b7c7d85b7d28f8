//! `tare memory bench`: reads and writes at a node.

mod row;

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context as _};
use clap::ValueEnum;
use serde_json::json;
use tare_farmem::operation::SpaceId;
use tare_farmem::protocol::{Failure, Secret};
use tare_farmem::session::{addresses, connect, connect_authorized, random_id, Error, Options};
use tare_farmem::transport::shm;
use tare_farmem::transport::xdp::{XdpAddress, XdpLink};
use tare_histogram::Histogram;

use self::row::{Cell, Row, HEADER};
use super::fleet::{allow_sockets, sockets, Fleet, UdpFleet, TIMEOUT};
use super::keygen::read_secret;
use super::layout::{Direction, Layout};
use super::load::Load;
use super::serve::Wait;
use crate::signals::signals_to_end;
use crate::size::parse_bytes;
use crate::terminal;

/// The time between two looks at whether the measurement is over.
const GROUP: Duration = Duration::from_millis(2);

/// The time between two questions to a node that does not answer yet.
const RETRY: Duration = Duration::from_millis(100);

/// The most address spaces that are named of those that stay at the node.
const NAMED_MAX: usize = 8;

/// The address of the first page: above the range that the document's node has from the start, and
/// below the addresses that a node chooses.
const BASE: u64 = 1 << 45;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare memory bench udp://127.0.0.1:7311\n  \
    tare memory bench udp://127.0.0.1:7311 --size 4Ki --order 16 --wait busy\n  \
    tare memory bench udp://127.0.0.1:7311 --sessions 1,8,100,400,700,1000 --format clio\n  \
    tare memory bench udp://127.0.0.1:7311 --threads 1,2,4 --size 1Ki --format clio\n  \
    tare memory bench udp://127.0.0.1:7311 --size 64Ki --outstanding 16 --json\n\n\
    Every byte that is read or written is verified, outside the measured time. Latencies are \
    measured with one outstanding operation only; with more, the time per operation is that of the \
    whole divided by their number.\n\n\
    Exit status: 0 completed; 1 a byte was wrong or an operation failed; 2 usage error, or the \
    measurement could not run; 130 interrupted.")]
pub(crate) struct Args {
    /// The node, such as udp://127.0.0.1:7311, shm:/run/tare/node.shm or
    /// xdp:eth1,10.0.0.2,10.0.0.1:7311
    #[arg(value_name = "NODE")]
    node: String,
    /// Operations to measure, comma-separated [default: write,read]
    #[arg(long, hide_default_value = true, value_enum, value_delimiter = ',', default_values_t = [Op::Write, Op::Read])]
    op: Vec<Op>,
    /// Bytes per operation; several values give one row each
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "16", value_parser = parse_bytes)]
    size: Vec<u64>,
    /// Number of threads, each with its own --sessions and pages; several values give one row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Vec<u32>,
    /// Number of sessions, each with its own address space; several values give one row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u64).range(1..=100_000))]
    sessions: Vec<u64>,
    /// log2 of the number of 4 KiB pages of all sessions together; several values give one row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [7], value_parser = clap::value_parser!(u32).range(0..=32))]
    order: Vec<u32>,
    /// Number of outstanding operations
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    outstanding: u16,
    /// Seconds per row
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0)]
    duration: f64,
    /// Waiting strategy for answers
    #[arg(long, value_enum, default_value_t = Wait::Busy)]
    wait: Wait,
    /// Encrypt, with the node's secret in this file, from which the capability of each session is
    /// derived
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
    /// Seconds to wait for the first answer of a node, which may have just been started (no wait
    /// over frames of an interface)
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    connect_timeout: f64,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Print JSON
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

/// The direction of operations.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Op {
    Read,
    Write,
}

/// The format of the result.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Human-readable table
    Table,
    /// Lines in the format of the tests in the Clio document; only one of sessions, orders, sizes
    /// and threads may have several values
    Clio,
}

/// Measures.
///
/// # Errors
/// The node does not answer, or has too little memory.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let duration = Duration::try_from_secs_f64(args.duration).context("the duration")?;
    for size in &args.size {
        ensure!(
            (1..=1 << 30).contains(size),
            "found --size {size}, expected 1 to 1Gi"
        );
    }
    let is_clio = args.format == Format::Clio;
    let axes = [
        args.size.len(),
        args.threads.len(),
        args.sessions.len(),
        args.order.len(),
    ];
    ensure!(
        !is_clio || axes.iter().filter(|values| **values > 1).count() < 2,
        "the lines of the document have one axis: give several values to one of --size, --threads, \
         --sessions and --order"
    );
    // A space is the node's until it is closed: Ctrl-C ends the row, not the program.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in signals_to_end() {
        // A second signal ends the program as it would without this.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))
            .context("signals")?;
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("signals")?;
    }
    wait_for_node(args, &stop)?;
    let mut rows: Vec<Row> = Vec::new();
    for cell in args.cells() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let row = measure(args, cell, duration, &stop);
        let row = row.map_err(|error| {
            let failure = error.downcast_ref().copied();
            match failure.and_then(|failure| remedy(&args.node, failure)) {
                Some(remedy) => error.context(remedy),
                None => error,
            }
        })?;
        if !args.json {
            let text = match args.format {
                Format::Table if rows.is_empty() => HEADER.to_owned() + &row.table(),
                Format::Table => row.table(),
                Format::Clio => row.clio(args, &rows),
            };
            if !text.is_empty() {
                terminal::print(&text)?;
            }
        }
        if is_clio && !row.is_right() {
            terminal::say(&format!("tare: {}: {}", row.name(), row.faults()));
        }
        if let Some(reason) = row.reason(args) {
            terminal::say(&reason);
        }
        rows.push(row);
    }
    if args.json {
        let rows: Vec<_> = rows.iter().map(|row| row.json(args)).collect();
        let result = json!({"schema": 1, "node": args.node, "rows": rows});
        terminal::print(&format!("{result}\n"))?;
    } else if is_clio && !stop.load(Ordering::Relaxed) {
        terminal::print("All tests are done.\n")?;
    }
    let is_left = rows.iter().any(|row| row.left > 0);
    if stop.load(Ordering::Relaxed) {
        terminal::say("tare: interrupted");
        return Ok(ExitCode::from(if is_left { 1 } else { 130 }));
    }
    let is_right = rows.iter().all(Row::is_right) && !is_left;
    Ok(ExitCode::from(u8::from(!is_right)))
}

impl Args {
    /// The rows, in their order.
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &op in &self.op {
            for &size in &self.size {
                for &threads in &self.threads {
                    for &sessions in &self.sessions {
                        cells.extend(self.order.iter().map(|&order| Cell {
                            op,
                            size,
                            threads,
                            sessions,
                            order,
                        }));
                    }
                }
            }
        }
        if self.format == Format::Clio && self.threads.len() > 1 {
            // A line of threads has both directions.
            cells.sort_by_key(|cell| cell.threads);
        }
        cells
    }
}

/// Waits until the node answers, unless its address cannot be used. A node that starts answers when
/// it has touched its memory, which takes seconds on a busy machine.
fn wait_for_node(args: &Args, stop: &AtomicBool) -> anyhow::Result<()> {
    if args.node.starts_with("xdp:") {
        return Ok(());
    }
    let secret = args.secret.as_deref().map(read_secret).transpose()?;
    let patience =
        Duration::try_from_secs_f64(args.connect_timeout).context("--connect-timeout")?;
    let (from, mut is_said) = (Instant::now(), false);
    loop {
        let Err(error) = ask(args, secret.as_ref()) else {
            return Ok(());
        };
        let may_be_starting = match &error {
            Error::Failed(_) => true,
            Error::Io(error) => matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::TimedOut
            ),
            _ => false,
        };
        let is_over = from.elapsed() >= patience || stop.load(Ordering::Relaxed);
        if !may_be_starting || is_over {
            return Err(error).with_context(|| args.node.clone());
        }
        if !is_said {
            let seconds = args.connect_timeout;
            terminal::say(&format!(
                "tare: {} does not answer yet; waiting for at most {seconds} s",
                args.node
            ));
            is_said = true;
        }
        thread::sleep(RETRY);
    }
}

/// Asks the node for an answer that needs none of its memory.
fn ask(args: &Args, secret: Option<&Secret>) -> Result<(), Error> {
    let options = Options::default();
    let mut session = match secret {
        Some(secret) => {
            let space = SpaceId(random_id()? >> 1);
            connect_authorized(&args.node, &options, secret.capability(space))?
        }
        None => connect(&args.node, &options)?,
    };
    session.ping().map(drop)
}

/// Measures a row, by all its threads at once.
fn measure(args: &Args, cell: Cell, duration: Duration, stop: &AtomicBool) -> anyhow::Result<Row> {
    if args.node.starts_with("udp:") {
        allow_sockets(sockets(cell.sessions) * u64::from(cell.threads))?;
    }
    let prepared = Barrier::new(cell.threads as usize);
    let ends: Vec<End> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cell.threads)
            .map(|_| scope.spawn(|| measure_one(args, cell, duration, (&prepared, stop))))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let left: Vec<SpaceId> = ends.iter().flat_map(|end| end.left.clone()).collect();
    if !left.is_empty() {
        terminal::say(&stay(args, &left));
    }
    let mut sum: Option<Row> = None;
    for end in ends {
        let row = end.row?;
        match &mut sum {
            None => sum = Some(row),
            Some(sum) => sum.add(&row),
        }
    }
    let mut sum = sum.context("no thread")?;
    sum.left = left.len();
    Ok(sum)
}

/// Returns the text about spaces that the node may have kept.
fn stay(args: &Args, left: &[SpaceId]) -> String {
    let spaces = match left.len() {
        1 => "1 address space".to_owned(),
        count => format!("{count} address spaces"),
    };
    let mut text = format!(
        "tare: {spaces} may stay at the node, which does not answer: tare memory close {}",
        args.node
    );
    for space in left.iter().take(NAMED_MAX) {
        let _ = write!(text, " {}", space.0);
    }
    if left.len() > NAMED_MAX {
        text.push_str(" … (tare memory status lists them)");
    }
    if let Some(secret) = &args.secret {
        let _ = write!(text, " --secret {}", secret.display());
    }
    text
}

/// The end of a thread: its row, and the spaces that the node may have kept.
struct End {
    row: anyhow::Result<Row>,
    left: Vec<SpaceId>,
}

fn measure_one(
    args: &Args,
    cell: Cell,
    duration: Duration,
    (prepared, stop): (&Barrier, &AtomicBool),
) -> End {
    let fleet = layout(cell).and_then(|layout| Ok((fleet(args, &layout)?, layout)));
    let (mut fleet, layout) = match fleet {
        Ok(both) => both,
        Err(error) => {
            prepared.wait();
            return End {
                row: Err(error),
                left: Vec::new(),
            };
        }
    };
    let load = Load::new(&mut fleet, layout);
    let load = load.map(|mut load| (load.prepare_memory(), load));
    // Also after a failure: the other threads wait.
    prepared.wait();
    match load {
        Ok((is_prepared, mut load)) => {
            let row = is_prepared.and_then(|()| run_for(args, cell, (duration, stop), &mut load));
            let left = load.close_all();
            End { row, left }
        }
        Err(error) => End {
            row: Err(error),
            left: Vec::new(),
        },
    }
}

/// Returns the memory that a thread of a row works on.
fn layout(cell: Cell) -> anyhow::Result<Layout> {
    let pages = ((1 << cell.order) / cell.sessions).max(1);
    Ok(Layout {
        first_space: random_id()? >> 1,
        spaces: cell.sessions,
        pages: pages.next_power_of_two(),
        base: BASE,
        size: cell.size as u32,
        direction: match cell.op {
            Op::Read => Direction::Read,
            Op::Write => Direction::Write,
        },
        regions: 0,
    })
}

/// Runs operations for a time, or until the program is to stop.
fn run_for(
    args: &Args,
    cell: Cell,
    (duration, stop): (Duration, &AtomicBool),
    load: &mut Load<'_>,
) -> anyhow::Result<Row> {
    let (mut latency, mut operations, mut time) = (Histogram::new(), 0, Duration::ZERO);
    let from = Instant::now();
    let outstanding = usize::from(args.outstanding);
    let least = load.group_min(outstanding);
    let mut count = least;
    loop {
        let group = match outstanding {
            1 => load.one_by_one(count, &mut latency)?,
            _ => load.group(count, outstanding)?,
        };
        operations += count as u64;
        time += group;
        // As many as take the time of a group, in which the whole window moves often.
        let fitting = GROUP.as_secs_f64() / group.as_secs_f64().max(1e-9) * count as f64;
        count = (fitting as usize).clamp(least, least.max(1 << 14));
        if from.elapsed() >= duration || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(Row {
        cell,
        latency,
        operations,
        time,
        proof: load.proof(),
        left: 0,
    })
}

/// Opens the sessions.
fn fleet(args: &Args, layout: &Layout) -> anyhow::Result<Fleet> {
    let secret = args.secret.as_deref().map(read_secret).transpose()?;
    match args.node.strip_prefix("shm:") {
        Some(path) => shm(Path::new(path), args, layout, secret.as_ref()),
        None => udp(args, layout, secret.as_ref()),
    }
}

/// Opens the sessions over UDP.
fn udp(args: &Args, layout: &Layout, secret: Option<&Secret>) -> anyhow::Result<Fleet> {
    let (node, link) = match args.node.strip_prefix("xdp:") {
        Some(place) => {
            let link = link(place, args)?;
            (link.node(), Some(link))
        }
        None => (addresses(&args.node)?[0], None),
    };
    let longest = link.as_ref().map(|link| link.station().datagram_max());
    let fleet = UdpFleet {
        node,
        sessions: layout.spaces,
        first_space: layout.first_space,
        datagram_bytes: longest,
        waiting: args.wait.into(),
        faults: None,
        secret,
    };
    match link {
        Some(link) => fleet.open_on(link),
        None => fleet.open(),
    }
}

/// Opens the link of all sessions over the frames of an interface.
fn link(place: &str, args: &Args) -> anyhow::Result<XdpLink> {
    let wrong = || {
        format!(
            "found \"{}\", expected xdp:IFACE,OWN-ADDRESS,NODE-ADDRESS:PORT",
            args.node
        )
    };
    let (own, node) = XdpAddress::with_node(place).with_context(wrong)?;
    XdpLink::connect(own, node, args.wait.into()).context(args.node.clone())
}

/// Opens the sessions over one ring of shared memory.
fn shm(
    path: &Path,
    args: &Args,
    layout: &Layout,
    secret: Option<&Secret>,
) -> anyhow::Result<Fleet> {
    let config = shm_config(args.wait);
    let mut client = shm::Client::connect(path, &config).context(args.node.clone())?;
    if let Some(secret) = secret {
        for session in 0..layout.spaces {
            let space = SpaceId(layout.first_space + session);
            let is_accepted = client.attach(&secret.capability(space))?;
            ensure!(is_accepted, "the node does not accept the secret");
        }
    }
    Ok(Fleet::over(0, vec![Box::new(client)]))
}

/// Returns the settings of a client over shared memory, with the time limit of those over UDP.
fn shm_config(wait: Wait) -> shm::ClientConfig {
    let config = match wait {
        Wait::Busy => shm::ClientConfig::busy(),
        _ => shm::ClientConfig::blocking(),
    };
    shm::ClientConfig {
        timeout: TIMEOUT,
        ..config
    }
}

/// Returns what to do about operations that the node did not answer in time, if that is the reason.
fn remedy(node: &str, failure: Failure) -> Option<String> {
    let seconds = TIMEOUT.as_secs();
    match failure {
        Failure::Refused(_) => None,
        // The node has ended, as the failure says.
        Failure::NodeGone if node.starts_with("shm:") => None,
        _ if node.starts_with("shm:") => Some(format!(
            "the node did not answer within the time limit of {seconds} s; give a smaller --size \
             or --outstanding"
        )),
        _ => Some(format!(
            "the node did not answer within the time limit; tare memory serve --timeout {seconds}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_limit_over_shared_memory_is_that_over_udp() {
        for wait in [Wait::Busy, Wait::Adaptive, Wait::Blocking] {
            assert_eq!(shm_config(wait).timeout, TIMEOUT);
        }
        assert_eq!(shm_config(Wait::Busy).busy, Duration::MAX);
        assert_ne!(shm_config(Wait::Blocking).busy, Duration::MAX);
    }

    #[test]
    fn operations_without_an_answer_have_a_remedy_by_transport() {
        let udp = |failure| remedy("udp://127.0.0.1:7311", failure);
        let shm = |failure| remedy("shm:/run/tare/node.shm", failure);
        for failure in [Failure::OutcomeUnknown, Failure::Timeout] {
            let said = udp(failure).unwrap();
            assert!(said.ends_with("; tare memory serve --timeout 2"), "{said}");
            assert!(shm(failure).unwrap().contains("smaller --size"));
        }
        assert!(udp(Failure::NodeGone).is_some());
        assert_eq!(shm(Failure::NodeGone), None);
    }

    pub(super) fn args(more: &[&str]) -> Args {
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            args: Args,
        }
        let words = ["bench", "udp://127.0.0.1:7311"].iter().chain(more);
        <Program as clap::Parser>::parse_from(words).args
    }

    #[test]
    fn spaces_that_stay_are_named_with_the_command_that_closes_them() {
        let spaces = |count: u64| (7..7 + count).map(SpaceId).collect::<Vec<_>>();
        let said = stay(&args(&["--secret", "node.secret"]), &spaces(2));
        let command = "close udp://127.0.0.1:7311 7 8 --secret node.secret";
        assert!(
            said.starts_with("tare: 2 address spaces may stay"),
            "{said}"
        );
        assert!(said.ends_with(&format!("tare memory {command}")), "{said}");
        let said = stay(&args(&[]), &spaces(1000));
        assert!(said.contains(" 13 14 … (tare memory status"), "{said}");
    }
}
