//! The report in a real browser: it asks nobody for anything, nothing goes wrong, and what is
//! drawn is what is in the data.

mod report_fixture;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use tare_lab::report;
use tare_lab::result::RunResult;

use report_fixture as fixture;

const CHROMIUM: &str = "/usr/bin/chromium";

/// A browser that has not finished by then never will.
const LIMIT: Duration = Duration::from_secs(90);

/// What the browser saw.
struct Visit {
    /// The document as the browser understood it.
    dom: String,
    /// Its log, messages of the page's console included.
    log: String,
    /// Every event of its network stack.
    net: Json,
    /// The address that it was given.
    address: String,
}

/// Opens `html` in a new browser; `None` where there is no browser and none is demanded.
fn visit(html: &str) -> Option<Visit> {
    if !Path::new(CHROMIUM).exists() {
        let missing = format!(
            "{CHROMIUM} is not installed, so the report was NOT tested in a browser; \
             apt-get install -y --no-install-recommends chromium gets it"
        );
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{missing}");
        eprintln!("\n*** NOT RUN: {missing} ***\n");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    let net = dir.path().join("net.json");
    fs::write(&page, html).unwrap();
    let address = format!("file://{}", page.display());
    let (dom, log) = (dir.path().join("dom.html"), dir.path().join("log.txt"));
    let mut child = Running(
        Command::new(CHROMIUM)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                // Whatever the browser itself wants to know, nothing leaves this machine.
                "--no-proxy-server",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                "--enable-logging=stderr",
                "--dump-dom",
            ])
            .arg(format!(
                "--user-data-dir={}",
                dir.path().join("profile").display()
            ))
            .arg(format!("--log-net-log={}", net.display()))
            .arg(&address)
            .stdin(Stdio::null())
            .stdout(fs::File::create(&dom).unwrap())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap(),
    );
    let status = child.wait();
    let log = String::from_utf8_lossy(&fs::read(log).unwrap()).into_owned();
    assert!(
        status.is_some_and(|status| status.success()),
        "{status:?}\n{log}"
    );
    Some(Visit {
        dom: fs::read_to_string(dom).unwrap(),
        log,
        net: net_log(net),
        address,
    })
}

/// A browser that ends with the test, whatever becomes of it.
struct Running(Child);

impl Running {
    fn wait(&mut self) -> Option<std::process::ExitStatus> {
        let begin = Instant::now();
        while begin.elapsed() < LIMIT {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its own helpers end when it does. Harmless where it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The network log; the browser may leave off its closing brackets.
fn net_log(path: PathBuf) -> Json {
    let text = fs::read_to_string(path).unwrap();
    let text = text.trim_end().trim_end_matches(',');
    ["", "]}", "}"]
        .iter()
        .find_map(|end| serde_json::from_str(&format!("{text}{end}")).ok())
        .expect("a network log")
}

/// Every address that the page asked the network stack for. The browser has errands of its own
/// (its clock, its updates); those have no origin and do not carry the page's isolation key.
fn requested(net: &Json) -> Vec<String> {
    let events = net["events"].as_array().expect("events");
    let mut addresses: Vec<String> = events
        .iter()
        .map(|event| &event["params"])
        .filter(|request| {
            let field = |name: &str| request[name].as_str().unwrap_or_default();
            let own = field("initiator") == "not an origin"
                && !field("network_isolation_key").contains("file:")
                && !field("site_for_cookies").contains("file:");
            request["initiator"].is_string() && !own
        })
        .filter_map(|request| request["url"].as_str().map(str::to_owned))
        .collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// The value of `name` in every element of the DOM that has it, with the rest of its tag.
fn tags<'a>(dom: &'a str, name: &str) -> Vec<&'a str> {
    let wanted = format!(" {name}=\"");
    dom.match_indices(&wanted)
        .map(|(at, _)| {
            let begin = dom[..at].rfind('<').unwrap();
            // A serialised attribute may hold `>`, so the end is the first one outside quotes.
            let mut quoted = false;
            let end = dom[begin..]
                .find(|c| {
                    quoted ^= c == '"';
                    c == '>' && !quoted
                })
                .unwrap();
            &dom[begin..begin + end]
        })
        .collect()
}

fn attribute(tag: &str, name: &str) -> String {
    let start = format!(" {name}=\"");
    let begin = tag
        .find(&start)
        .unwrap_or_else(|| panic!("{name} in {tag}"))
        + start.len();
    let end = begin + tag[begin..].find('"').unwrap();
    [
        ("&quot;", "\""),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&nbsp;", "\u{a0}"),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(tag[begin..end].to_owned(), |text, (coded, plain)| {
        text.replace(coded, plain)
    })
}

fn decoded(base64: &str) -> Vec<u8> {
    const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for c in base64.trim_end_matches('=').chars() {
        bits = bits << 6 | ALPHABET.find(c).expect("base64") as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    bytes
}

/// The marks of the DOM against the cells of the JSON that the page itself offers.
fn compare(visit: &Visit, run: &RunResult) {
    let link = tags(&visit.dom, "id");
    let link = link
        .iter()
        .find(|tag| tag.contains("id=\"data-json\""))
        .expect("the download");
    assert!(link.contains(" download=\""));
    let data = attribute(link, "href");
    let data = data
        .strip_prefix("data:application/json;base64,")
        .expect("a data link");
    let text = String::from_utf8(decoded(data)).unwrap();
    assert_eq!(text, serde_json::to_string(run).unwrap());
    let json: Json = serde_json::from_str(&text).unwrap();

    let mut wanted: Vec<(String, String, String, f64)> = Vec::new();
    for experiment in json["experiments"].as_array().unwrap() {
        for cell in experiment["cells"].as_array().unwrap() {
            if let Some(median) = cell["median"].as_f64() {
                let at = cell["at"].to_string();
                let words = |value: &Json| value.as_str().unwrap().to_owned();
                wanted.push((words(&experiment["id"]), words(&cell["metric"]), at, median));
            }
        }
    }
    let mut drawn: Vec<(String, String, String, f64)> = tags(&visit.dom, "data-experiment")
        .into_iter()
        .map(|tag| {
            let field = |name| attribute(tag, name);
            let at: Json = serde_json::from_str(&field("data-at")).unwrap();
            let value = field("data-value").parse().unwrap();
            (
                field("data-experiment"),
                field("data-metric"),
                at.to_string(),
                value,
            )
        })
        .collect();
    let order = |a: &(String, String, String, f64), b: &(String, String, String, f64)| {
        (&a.0, &a.1, &a.2).cmp(&(&b.0, &b.1, &b.2))
    };
    wanted.sort_by(order);
    drawn.sort_by(order);
    assert_eq!(drawn.len(), wanted.len());
    for (drawn, wanted) in drawn.iter().zip(&wanted) {
        assert_eq!(
            (&drawn.0, &drawn.1, &drawn.2),
            (&wanted.0, &wanted.1, &wanted.2)
        );
        assert!(
            (drawn.3 - wanted.3).abs() <= 1e-12 * wanted.3.abs(),
            "{drawn:?} {wanted:?}"
        );
    }
}

/// No console message of the page, no failed load, and the file itself as the only request.
fn undisturbed(visit: &Visit) {
    let console: Vec<&str> = visit
        .log
        .lines()
        .filter(|line| line.contains("CONSOLE") || line.contains("Content Security Policy"))
        .collect();
    assert!(console.is_empty(), "{console:?}");
    let foreign: Vec<String> = requested(&visit.net)
        .into_iter()
        .filter(|address| *address != visit.address && !address.starts_with("data:"))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    for name in ["href", "src", "srcset", "action", "xlink:href"] {
        for tag in tags(&visit.dom, name) {
            let target = attribute(tag, name);
            assert!(
                target.starts_with('#') || target.starts_with("data:"),
                "{tag}"
            );
        }
    }
}

#[test]
fn the_page_makes_no_request_and_draws_the_points_of_its_json() {
    let run = fixture::run();
    if let Some(visit) = visit(&report::html(&run)) {
        undisturbed(&visit);
        compare(&visit, &run);
    }
}

#[test]
fn hostile_text_stays_text_in_the_browser() {
    let run = fixture::hostile();
    if let Some(visit) = visit(&report::html(&run)) {
        undisturbed(&visit);
        // Attributes are serialised with a bare `<`; no element of these names may begin.
        let mut quoted = false;
        let outside: String = visit
            .dom
            .chars()
            .filter(|&c| {
                quoted ^= c == '"';
                !quoted
            })
            .collect();
        for tag in ["<script", "<img", "<iframe"] {
            assert!(!outside.contains(tag), "{tag}");
        }
    }
}

/// The detectors themselves: a page that does ask for something and does complain is caught.
#[test]
fn a_page_that_asks_and_complains_is_caught() {
    let page = "<!doctype html><title>x</title><script>console.error('complaint')</script>\
                <img src=\"http://127.0.0.1:9/x.png\"><link rel=stylesheet href=\"https://example.invalid/x.css\">";
    if let Some(visit) = visit(page) {
        assert!(visit.log.contains("complaint"), "{}", visit.log);
        let asked = requested(&visit.net);
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(std::panic::catch_unwind(|| undisturbed(&visit)).is_err());
    }
}
