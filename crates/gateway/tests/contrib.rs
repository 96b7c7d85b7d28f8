//! The dashboard and the alert rules in `contrib/` ask for what the gateway exports.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tare_daemon::{ProcessStatus, Report as _};
use tare_gateway::config::Config;
use tare_gateway::control::SaStatus;
use tare_gateway::daemon::{Report, WorkerReport};
use tare_gateway::{InterfaceState, Node};
use tare_port::{Layout, Pool};
use tare_sim::Instant;

/// The metrics of a gateway that has just been started, with everything that it may export.
fn exported() -> String {
    let text = r#"
        private-interface { device private; ip4 172.16.0.10; nexthop-ip4 172.16.0.1; }
        public-interface { device public; ip4 192.0.2.1; nexthop-ip4 192.0.2.2; }
        route {
          id branch; gw-ip4 198.51.100.7; net-cidr4 "172.17.1.0/24"; spi 1001;
          preshared-key 91440DA06376A668AC4959A840A125D75FB544E8AA25A08B813E49F0A4B2E270;
        }"#;
    let (config, _) = Config::parse("test", text.as_bytes()).unwrap();
    let interface = InterfaceState {
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        up: true,
    };
    let pool = Pool::new(8, 2048, Layout::Spread).unwrap();
    let entropy = Box::new(|bytes: &mut [u8]| bytes.fill(7));
    let node = Node::new(config, interface, interface, entropy, pool, Instant::ZERO);
    let mut status = node.unwrap().control().status();
    let route = &mut status.routes[0];
    route.handshake_age_s = Some(1);
    let sa = SaStatus {
        age_s: Some(1),
        ..SaStatus::default()
    };
    (route.outbound, route.inbound) = (vec![sa.clone()], vec![sa]);
    let process = ProcessStatus {
        config: "test".into(),
        ..ProcessStatus::default()
    };
    let report = Report {
        process,
        workers: vec![WorkerReport::default()],
        metrics_per_sa: true,
        status,
        ..Report::default()
    };
    report.prometheus()
}

fn contrib(file: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib");
    PathBuf::from(root).join(file)
}

const RULES: &str = "prometheus/tare-gateway.rules.yml";

/// The expressions of the dashboard, of its panels and variables.
fn dashboard() -> Vec<String> {
    fn collect(value: &Value, to: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(text) if name == "expr" || name == "definition" => {
                            to.push(text.clone());
                        }
                        value => collect(value, to),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, to)),
            _ => {}
        }
    }
    let text = fs::read_to_string(contrib("grafana/tare-gateway.json")).unwrap();
    let mut expressions = Vec::new();
    collect(&serde_json::from_str(&text).unwrap(), &mut expressions);
    expressions
}

/// The expressions of the alert rules.
fn rules() -> Vec<String> {
    let text = fs::read_to_string(contrib(RULES)).unwrap();
    let lines = text.lines().map(str::trim);
    lines
        .filter_map(|line| Some(line.strip_prefix("expr: ")?.to_owned()))
        .collect()
}

/// Returns what an expression asks for that is not exported: a metric, a label of one, or a value
/// of that.
fn missing(expression: &str, exported: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for at in expression.match_indices("tare_gateway_").map(|(at, _)| at) {
        let rest = &expression[at..];
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let (metric, rest) = rest.split_at(end);
        let samples: Vec<&str> = exported
            .lines()
            .filter(|line| {
                line.strip_prefix(metric)
                    .is_some_and(|l| l.starts_with(['{', ' ']))
            })
            .collect();
        if samples.is_empty() {
            missing.push(metric.to_owned());
            continue;
        }
        let matchers = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let matchers = matchers.map_or("", |(matchers, _)| matchers);
        for matcher in matchers.split(", ").filter(|matcher| !matcher.is_empty()) {
            let (label, value) = matcher.split_once('=').unwrap();
            let values = value.trim_start_matches('~').trim_matches('"').split('|');
            for value in values {
                // Prometheus adds `instance`; Grafana fills in what begins with a dollar sign.
                let sample = match value.starts_with('$') {
                    true => format!("{label}=\""),
                    false => format!("{label}=\"{value}\""),
                };
                if label != "instance" && !samples.iter().any(|line| line.contains(&sample)) {
                    missing.push(format!("{metric}{{{sample}}}"));
                }
            }
        }
    }
    missing
}

#[test]
fn dashboard_and_alerts_ask_only_for_what_is_exported() {
    let exported = exported();
    let expressions: Vec<_> = dashboard().into_iter().chain(rules()).collect();
    assert!(expressions.len() > 15, "{expressions:?}");
    let wrong: Vec<_> = expressions
        .iter()
        .flat_map(|e| missing(e, &exported))
        .collect();
    assert_eq!(wrong, Vec::<String>::new(), "{exported}");
    // The check itself finds what is not there.
    for (expression, expected) in [
        (
            "rate(tare_gateway_route_bytes[5m])",
            "tare_gateway_route_bytes",
        ),
        (
            r#"tare_gateway_route_up{spi="1"}"#,
            r#"tare_gateway_route_up{spi="1"}"#,
        ),
        (
            r#"tare_gateway_dropped_packets_total{reason=~"forged|bad"}"#,
            r#"tare_gateway_dropped_packets_total{reason="bad"}"#,
        ),
    ] {
        assert_eq!(missing(expression, &exported), [expected]);
    }
    // Each route is there from the start with what alerts look at, and without SPIs by default.
    for sample in [
        r#"route_up{route="branch",gateway="198.51.100.7"} 0"#,
        r#"route_packets_total{route="branch",direction="outbound"} 0"#,
        r#"route_bytes_total{route="branch",direction="inbound"} 0"#,
        r#"route_dropped_packets_total{route="branch",direction="inbound",reason="forged"} 0"#,
        r#"route_path_mtu_bytes{route="branch"} 1500"#,
    ] {
        assert!(
            exported.contains(&format!("\ntare_gateway_{sample}\n")),
            "{sample}"
        );
    }
}

#[test]
fn metrics_have_conventional_names_and_units() {
    let exported = exported();
    let families: BTreeSet<(&str, &str)> = exported
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    assert!(families.len() > 20);
    for (name, kind) in families {
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
        for unit in ["_ms", "_us", "_minutes", "_kbytes", "_bits", "_percent"] {
            assert!(!name.contains(unit), "{name}");
        }
    }
}

/// Runs promtool, with `input` on its standard input; `None` if it is not installed, which is a
/// failure under CI.
fn promtool(arguments: &[&str], input: &str) -> Option<()> {
    let spawned = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            let said = format!(
                "NOT TESTED: dashboard and alerts by promtool: {error}; as root: apt-get install prometheus"
            );
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{said}");
            // Past the capture of the test runner: what is not tested must be seen.
            let _ = writeln!(std::io::stderr(), "{said}");
            return None;
        }
    };
    let mut standard_input = child.stdin.take().unwrap();
    standard_input.write_all(input.as_bytes()).unwrap();
    drop(standard_input);
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "promtool {arguments:?}: {said:?}");
    Some(())
}

#[test]
fn promtool_accepts_metrics_alerts_and_dashboard() {
    let Some(()) = promtool(&["check", "metrics"], &exported()) else {
        return;
    };
    for (action, file) in [
        ("check", RULES),
        ("test", "prometheus/tare-gateway.test.yml"),
    ] {
        let file = contrib(file);
        promtool(&[action, "rules", file.to_str().unwrap()], "");
    }
    // As rules, the expressions of the dashboard are checked as such.
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    let panels = dashboard().into_iter();
    for (number, expression) in panels
        .filter(|e| !e.starts_with("label_values"))
        .enumerate()
    {
        let expression = expression.replace("$__rate_interval", "5m");
        let expression = serde_json::to_string(&expression).unwrap();
        rules += &format!("  - record: panel:{number}\n    expr: {expression}\n");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), rules).unwrap();
    promtool(&["check", "rules", file.path().to_str().unwrap()], "");
}
