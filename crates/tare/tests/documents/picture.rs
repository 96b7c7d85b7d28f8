//! The picture of README.md: the processor time that a tunnel costs per packet, from the
//! experiment `vita/cipher`.

use std::fmt::Write as _;

use serde_json::Value;

/// The experiment's subjects: two parts, and the whole.
const SUBJECTS: [&str; 3] = ["tester", "cipher", "gateway"];

/// The parts between them, with their colours on a light and on a dark page.
const PARTS: [(&str, &str, &str); 3] = [
    ("making and comparing the packet", "#9aa5b1", "#6b7785"),
    ("AES-GCM, sealed and opened", "#3b6fb6", "#5b93dd"),
    ("ESP, routes, replay window, counters", "#d08a2e", "#e0a04a"),
];

/// The width of the bars in pixels, their left edge, and the height of a row.
const WIDTH: f64 = 520.0;
const LEFT: f64 = 110.0;
const ROW: f64 = 34.0;

/// Nanoseconds of processor time per packet of each subject, for each size in the run's order.
fn costs(result: &Value) -> Vec<(String, [f64; 3])> {
    let experiments = result["experiments"].as_array().unwrap();
    let experiment = experiments
        .iter()
        .find(|experiment| experiment["id"] == "vita/cipher")
        .expect("the run has vita/cipher");
    let cells = experiment["cells"].as_array().unwrap();
    let mut costs: Vec<(String, [f64; 3])> = Vec::new();
    for cell in cells {
        assert_eq!(cell["unit"], "Mpps", "{cell}");
        let size = cell["at"]["size"].as_str().unwrap();
        let subject = cell["at"]["subject"].as_str().unwrap();
        let place = SUBJECTS.iter().position(|own| *own == subject).unwrap();
        if !costs.iter().any(|(own, _)| own == size) {
            costs.push((size.to_owned(), [0.0; 3]));
        }
        let (_, row) = costs.iter_mut().find(|(own, _)| own == size).unwrap();
        row[place] = 1000.0 / cell["median"].as_f64().unwrap();
    }
    costs
}

/// The picture as SVG.
pub(crate) fn cost(result: &Value) -> String {
    let costs = costs(result);
    let most = costs.iter().map(|(_, row)| row[2]).fold(0.0, f64::max);
    let cpu = result["machine"]["cpu_model"]
        .as_str()
        .unwrap_or("this machine");
    let height = 62.0 + ROW * costs.len() as f64 + 22.0 * PARTS.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"720\" height=\"{height:.0}\" \
         viewBox=\"0 0 720 {height:.0}\" font-family=\"system-ui, sans-serif\" font-size=\"13\" \
         role=\"img\" aria-label=\"Processor time per packet through two gateways\">\n<style>\
         text {{ fill: #24292f }}"
    );
    for (at, (_, light, _)) in PARTS.iter().enumerate() {
        let _ = write!(svg, " .p{at} {{ fill: {light} }}");
    }
    svg += " @media (prefers-color-scheme: dark) { text { fill: #d0d7de }";
    for (at, (_, _, dark)) in PARTS.iter().enumerate() {
        let _ = write!(svg, " .p{at} {{ fill: {dark} }}");
    }
    svg += " }</style>\n";
    let _ = writeln!(
        svg,
        "<text x=\"0\" y=\"16\" font-weight=\"600\">Encryption: processor time per packet, through \
         two gateways on one core</text>\n<text x=\"0\" y=\"36\">{}</text>",
        escaped(cpu)
    );
    let mut y = 52.0;
    for (size, row) in &costs {
        let bytes = if size == "IMIX" {
            "IMIX".to_owned()
        } else {
            format!("{size} bytes")
        };
        let _ = writeln!(svg, "<text x=\"0\" y=\"{:.0}\">{bytes}</text>", y + 17.0);
        // The gateway's own part is what is left of the whole.
        let parts = [row[0], row[1], (row[2] - row[1] - row[0]).max(0.0)];
        let mut x = LEFT;
        for (at, part) in parts.iter().enumerate() {
            let width = part / most * WIDTH;
            let _ = writeln!(
                svg,
                "<rect class=\"p{at}\" x=\"{x:.1}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"24\"/>"
            );
            x += width;
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.0}\">{:.0} ns</text>",
            x + 8.0,
            y + 17.0,
            row[2]
        );
        y += ROW;
    }
    for (at, (name, ..)) in PARTS.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<rect class=\"p{at}\" x=\"{LEFT}\" y=\"{:.0}\" width=\"12\" height=\"12\"/>\
             <text x=\"{}\" y=\"{:.0}\">{name}</text>",
            y + 8.0,
            LEFT + 20.0,
            y + 19.0
        );
        y += 22.0;
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
