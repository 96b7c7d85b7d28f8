//! The report in a real browser: it makes no request, nothing goes wrong, and what is
//! drawn is what is in the data.

mod report_browser;
mod report_fixture;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use tare_lab::report;
use tare_lab::result::RunResult;

use report_browser as browser;
use report_browser::{Page, Running, LIMIT};
use report_fixture as fixture;

/// The observations of the browser.
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

/// Opens `html` in a new browser; `None` if there is no browser and none is demanded.
fn visit(html: &str) -> Option<Visit> {
    if !browser::exists() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    let net = dir.path().join("net.json");
    fs::write(&page, html).unwrap();
    let address = format!("file://{}", page.display());
    let (dom, log) = (dir.path().join("dom.html"), dir.path().join("log.txt"));
    let mut child = Running(
        Command::new(browser::CHROMIUM)
            .args(browser::OPTIONS)
            .args([
                // Whatever the browser itself wants to know, nothing leaves this machine.
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
            .env("TMPDIR", dir.path())
            .stdin(Stdio::null())
            .stdout(fs::File::create(&dom).unwrap())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap(),
    );
    let status = wait(&mut child);
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

fn wait(child: &mut Running) -> Option<std::process::ExitStatus> {
    let begin = Instant::now();
    while begin.elapsed() < LIMIT {
        if let Some(status) = child.0.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    None
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
    let text = String::from_utf8(data_encoding::BASE64.decode(data.as_bytes()).unwrap()).unwrap();
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
    // Pages of the browser's own complain too, of a slow network on a busy machine.
    let is_of_browser = |line: &&str| {
        let source = line.rsplit_once(", source: ");
        source.is_some_and(|(_, source)| source.starts_with("chrome://"))
    };
    let console: Vec<&str> = visit
        .log
        .lines()
        .filter(|line| line.contains("CONSOLE") || line.contains("Content Security Policy"))
        .filter(|line| !is_of_browser(line))
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

/// The windows that a report is read in.
const WIDTHS: [u32; 3] = [360, 768, 1280];

/// The width of the text on a sheet of A4, in CSS pixels.
const PAPER: u32 = 703;

/// Every window in light and dark, and both on paper.
fn windows() -> Vec<(u32, &'static str, &'static str)> {
    let screens = WIDTHS.map(|width| (width, "screen")).into_iter();
    screens
        .chain([(PAPER, "print")])
        .flat_map(|(width, media)| ["light", "dark"].map(|scheme| (width, scheme, media)))
        .collect()
}

/// Returns the faults of the page in these windows. With `REPORT_PICTURES=DIR` each is also written
/// there as a picture.
fn misfits(name: &str, html: &str, windows: &[(u32, &str, &str)]) -> Vec<String> {
    let mut page = Page::open(html);
    let mut wrong = Vec::new();
    let mut paper = Vec::new();
    for &(width, scheme, media) in windows {
        page.show(width, scheme, media);
        let found = page.evaluate(include_str!("report_browser/measure.js"));
        let found = found.as_array().expect("a list").iter();
        wrong.extend(found.map(|what| format!("{name}, {width} px, {scheme}, {media}: {what}")));
        let colour = page.evaluate("getComputedStyle(document.body).backgroundColor");
        paper.push((scheme, media, colour));
        if let Some(directory) = std::env::var_os("REPORT_PICTURES") {
            let file = format!("{name}-{width}-{scheme}-{media}.png");
            page.picture(&PathBuf::from(directory).join(file));
        }
    }
    for (scheme, media, colour) in &paper {
        let bright = !colour.as_str().unwrap().starts_with("rgb(1");
        if bright != (scheme == &"light" || media == &"print") {
            wrong.push(format!(
                "{name}: the page is {colour} in {scheme} on {media}"
            ));
        }
    }
    wrong
}

#[test]
fn everything_fits_at_every_width_in_light_in_dark_and_on_paper() {
    if !browser::exists() {
        return;
    }
    let runs = [
        ("run", fixture::run()),
        ("hostile", fixture::hostile()),
        ("large", fixture::large()),
    ];
    let wrong: Vec<String> = runs
        .iter()
        .flat_map(|(name, run)| misfits(name, &report::html(run), &windows()))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_run_prints_on_few_sheets() {
    if !browser::exists() {
        return;
    }
    let sheets = Page::open(&report::html(&fixture::run())).sheets();
    assert!((2..=SHEETS).contains(&sheets), "{sheets} sheets");
}

/// Six experiments with eight claims and targets.
const SHEETS: usize = 6;

/// The measure itself: text that is too wide, covered, clipped or on a page of one colour.
#[test]
fn what_does_not_fit_is_found() {
    if !browser::exists() {
        return;
    }
    let good = report::html(&fixture::run());
    for (what, style, found) in [
        (
            "a table",
            "table{width:1400px!important}",
            "the document is",
        ),
        ("a cell", "dd{white-space:nowrap;width:60px}", "wide in"),
        (
            "a tick",
            ".labels{margin-left:-60px}",
            "text outside its frame",
        ),
        (
            "names",
            ".names li{position:absolute!important;top:0!important}",
            "under",
        ),
        (
            "a mark",
            ".track .m{transform:translateY(-3000px)}",
            "mark outside its frame",
        ),
        (
            "a share",
            ".share text{font-size:40px}",
            "text outside its segment",
        ),
        (
            "a letter",
            ".share .w0{display:none!important}",
            "a segment without its letter",
        ),
        (
            "a bar",
            ".share rect{transform:translateX(400px)}",
            "segment outside its frame",
        ),
        ("labels", ".labels text{display:none!important}", "labels"),
        (
            "one colour",
            "body{background:#fff!important}",
            "the page is",
        ),
    ] {
        let bad = good.replacen("</style>", &format!("{style}</style>"), 1);
        let wrong = misfits(what, &bad, &[(360, "dark", "screen")]);
        assert!(
            wrong.iter().any(|it| it.contains(found)),
            "{what}: {wrong:?}"
        );
    }
}
