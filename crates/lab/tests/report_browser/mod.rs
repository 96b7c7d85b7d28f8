//! A Chromium that a test drives: the DevTools protocol over a pair of pipes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde_json::{json, Value as Json};

/// The browser that the tests use.
pub(crate) const CHROMIUM: &str = "/usr/bin/chromium";

/// A browser that has not answered by then never will.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The options that keep the browser from requests of its own.
pub(crate) const OPTIONS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
];

/// Returns true if there is a browser; says so if not, and fails where one is demanded.
pub(crate) fn exists() -> bool {
    if Path::new(CHROMIUM).exists() {
        return true;
    }
    let missing = format!(
        "NOT TESTED: the report in a browser: {CHROMIUM} is not installed; \
         apt-get install -y --no-install-recommends chromium gets it"
    );
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{missing}");
    // Past the capture of the test runner: what is not tested must be seen.
    let _ = writeln!(std::io::stderr(), "{missing}");
    false
}

/// A process that ends with the test, however that ends.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Its own helpers end when it does. Harmless where it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One page of a browser of its own.
pub(crate) struct Page {
    to: ChildStdin,
    from: Receiver<Json>,
    session: Option<String>,
    calls: u64,
    _browser: Running,
    directory: tempfile::TempDir,
}

impl Page {
    /// Opens `html`.
    pub(crate) fn open(html: &str) -> Page {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("report.html");
        std::fs::write(&file, html).unwrap();
        // The protocol runs over descriptors 3 and 4, which only a shell can arrange without
        // unsafe code.
        let mut child = Command::new("/bin/sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null"])
            .arg(CHROMIUM)
            .args(OPTIONS)
            .arg("--remote-debugging-pipe")
            .arg(format!(
                "--user-data-dir={}",
                directory.path().join("profile").display()
            ))
            // It is killed, and would leave folders behind.
            .env("TMPDIR", directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let from = messages(child.stdout.take().unwrap());
        let mut page = Page {
            to,
            from,
            session: None,
            calls: 0,
            _browser: Running(child),
            directory,
        };
        let target = page.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let session = page.call("Target.attachToTarget", target);
        page.session = session["sessionId"].as_str().map(str::to_owned);
        page.call("Page.enable", json!({}));
        page.call(
            "Page.navigate",
            json!({ "url": format!("file://{}", file.display()) }),
        );
        while page.next()["method"] != "Page.loadEventFired" {}
        page
    }

    /// Shows the page in a window of that width, in a colour scheme, on a screen or on paper.
    pub(crate) fn show(&mut self, width: u32, scheme: &str, media: &str) {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": true });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let media = json!({ "media": media, "features": scheme });
        self.call("Emulation.setEmulatedMedia", media);
    }

    /// Returns the value of `script`.
    pub(crate) fn evaluate(&mut self, script: &str) -> Json {
        let script = json!({ "expression": script, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", script);
        assert!(answer.get("exceptionDetails").is_none(), "{answer}");
        answer["result"]["value"].clone()
    }

    /// Returns the number of sheets of A4 the page takes.
    pub(crate) fn sheets(&mut self) -> usize {
        let paper = json!({ "paperWidth": 8.27, "paperHeight": 11.69, "printBackground": true });
        let pdf = self.call("Page.printToPDF", paper);
        let pdf = data_encoding::BASE64
            .decode(pdf["data"].as_str().unwrap().as_bytes())
            .unwrap();
        let page = b"/Type /Page";
        pdf.windows(page.len() + 1)
            .filter(|window| window.starts_with(page) && window[page.len()] != b's')
            .count()
    }

    /// Writes a picture of the whole page to `file`, for those who want to look themselves.
    pub(crate) fn picture(&mut self, file: &Path) {
        let height = self.evaluate("document.documentElement.scrollHeight");
        let width = self.evaluate("innerWidth");
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let how = json!({ "captureBeyondViewport": true, "clip": clip });
        let picture = self.call("Page.captureScreenshot", how);
        let picture = picture["data"].as_str().unwrap().as_bytes();
        std::fs::write(file, data_encoding::BASE64.decode(picture).unwrap()).unwrap();
    }

    fn call(&mut self, method: &str, parameters: Json) -> Json {
        self.calls += 1;
        let mut call = json!({ "id": self.calls, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            call["sessionId"] = json!(session);
        }
        write!(self.to, "{call}\0").unwrap();
        self.to.flush().unwrap();
        loop {
            let mut answer = self.next();
            if answer["id"] == self.calls {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }

    fn next(&mut self) -> Json {
        let limit = format!(
            "no answer within {LIMIT:?} in {}",
            self.directory.path().display()
        );
        self.from.recv_timeout(LIMIT).expect(&limit)
    }
}

/// The messages of the browser, each ended by a zero byte.
fn messages(out: ChildStdout) -> Receiver<Json> {
    let (to, from) = mpsc::channel();
    std::thread::spawn(move || {
        let mut out = BufReader::new(out);
        let mut message = Vec::new();
        while out.read_until(0, &mut message).is_ok_and(|bytes| bytes > 0) {
            message.pop();
            let message = serde_json::from_slice(&std::mem::take(&mut message));
            if to.send(message.expect("JSON from the browser")).is_err() {
                break;
            }
        }
    });
    from
}
