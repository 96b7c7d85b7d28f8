//! The section of `tare doctor` about guests.

use std::fmt::Write as _;

use tare_guest::host::{Host, State};

/// The width of the names of checks.
const NAME_WIDTH: usize = 10;

/// Returns the section in words.
pub(crate) fn in_words(host: &Host) -> String {
    let mut text = String::from("\nGuests\n");
    for check in &host.checks {
        let sign = match check.state {
            State::Fine => '✓',
            State::Lacking => '!',
            State::Unknown => '?',
        };
        let _ = writeln!(text, "  {sign} {:NAME_WIDTH$}  {}", check.name, check.found);
        if check.state != State::Fine {
            let _ = writeln!(text, "      {}", check.matters);
        }
        if let Some(remedy) = &check.remedy {
            let _ = writeln!(text, "      to change that: {remedy}");
        }
    }
    for trouble in &host.troubles {
        let _ = writeln!(text, "  If {}:", trouble.name);
        for cause in &trouble.causes {
            let place = match cause.is_here {
                Some(true) => "here",
                Some(false) => "not here",
                None => "not visible from here",
            };
            let _ = writeln!(text, "    - {} ({place})", cause.name);
            let _ = writeln!(text, "      what helps: {}", cause.remedy);
        }
    }
    text
}
