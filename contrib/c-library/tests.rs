//! The common part of the tests of the C libraries: the library built and installed for them,
//! programs of the machine, and what each library, its manual pages and its installation promise.
//! It is a module of each library's test.

use std::collections::BTreeSet;
use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The folder of the library's package.
pub(crate) const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// The names of a library and of its installation.
pub(crate) struct Library {
    /// Its name, with `lib`.
    pub(crate) name: &'static str,
    /// The name of its installed file, and its SONAME.
    pub(crate) files: [&'static str; 2],
    /// The place that it is installed for.
    pub(crate) prefix: &'static str,
    pub(crate) headers: &'static [&'static str],
    pub(crate) packages: &'static [&'static str],
}

/// The folder of these tests for what they make.
pub(crate) fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns a path as text.
pub(crate) fn name(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Writes past the test harness, which keeps the output of tests that pass to itself.
pub(crate) fn not_tested(reason: &str) {
    let _ = std::io::stderr().write_all(format!("\nNOT TESTED: {reason}\n").as_bytes());
}

/// Runs a program; `None`, with a note, if it is not installed and not required.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    found(program, Command::new(program).args(arguments).output())
}

/// Returns the result of starting a program; `None`, with a note, if it is not installed and not
/// required.
pub(crate) fn found<T>(program: &str, result: std::io::Result<T>) -> Option<T> {
    match result {
        Ok(result) => Some(result),
        Err(error) if env::var("CI").is_ok_and(|value| value == "true") => {
            panic!("{program} is required where CI=true: {error}")
        }
        Err(error) => {
            not_tested(&format!("{program} does not run: {error}"));
            None
        }
    }
}

/// Checks that the manual pages render. Here a page is one of `man/man3`.
pub(crate) fn render_manual_pages() {
    let manual = Path::new(HERE).join("man");
    for page in std::fs::read_dir(manual.join("man3")).expect("pages") {
        let file = page.expect("a page").file_name();
        let page = format!("man3/{}", file.to_str().expect("a name in UTF-8"));
        // From here, because most pages only name the one that they stand for.
        let rendered = Command::new("man")
            .args(["--warnings", "-E", "UTF-8", "-l", &page])
            .current_dir(&manual)
            // `man` complains of a locale that this machine lacks.
            .env("LC_ALL", "C.UTF-8")
            .env("MANPAGER", "cat")
            .env("MANWIDTH", "80")
            .output();
        let Some(rendered) = found("man", rendered) else {
            return;
        };
        assert!(rendered.status.success(), "{page}: {}", rendered.status);
        assert_eq!(text(&rendered.stderr), "", "{page}");
        assert!(text(&rendered.stdout).contains("SYNOPSIS"), "{page}");
    }
}

/// Checks that there is a manual page for each of these functions, which leads to the main page,
/// and that the main page has it as `place` writes it.
pub(crate) fn find_manual_pages(
    functions: &BTreeSet<String>,
    main: &str,
    place: impl Fn(&str) -> String,
) {
    let pages = Path::new(HERE).join("man/man3");
    let described = std::fs::read_to_string(pages.join(main)).expect("the main page");
    for function in functions {
        let page = std::fs::read_to_string(pages.join(format!("{function}.3")));
        let page = page.unwrap_or_else(|error| panic!("{function}: {error}"));
        assert_eq!(page, format!(".so man3/{main}\n"), "{function}");
        let place = place(function);
        assert!(described.contains(&place), "{main} lacks {place}");
    }
    let count = std::fs::read_dir(pages).expect("pages").count();
    assert_eq!(count, functions.len() + 1);
}

impl Library {
    /// Returns the functions that the shared library exports.
    pub(crate) fn exported(&self) -> Option<BTreeSet<String>> {
        let library = self.installed().join(self.name).with_extension("so");
        let output = run("nm", &["-D", "--defined-only", name(&library)])?;
        assert!(output.status.success(), "{}", text(&output.stderr));
        let symbols = text(&output.stdout);
        let symbols = symbols.lines().filter_map(|line| line.split(' ').nth(2));
        Some(symbols.map(str::to_owned).collect())
    }

    /// Builds and installs the library, once for all tests, into the tree `tree` of the scratch
    /// folder; returns the folder of the libraries there. The build has a target folder of these
    /// tests' own, so that they neither wait for nor deceive the build that runs them.
    pub(crate) fn installed(&self) -> &'static Path {
        static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
        LIBRARIES.get_or_init(|| {
            let tree = scratch().join("tree");
            let _ = std::fs::remove_dir_all(&tree);
            let output = Command::new("sh")
                .arg(format!("{HERE}/install.sh"))
                .arg(format!("--prefix={}", self.prefix))
                .arg(format!("--libdir={}/lib64", self.prefix))
                .arg(format!("--destdir={}", tree.display()))
                .env("CARGO", env!("CARGO"))
                .env("CARGO_TARGET_DIR", scratch())
                .env_remove("CARGO_BUILD_TARGET")
                .output()
                .expect("sh runs");
            assert!(output.status.success(), "{}", text(&output.stderr));
            tree.join(&self.prefix[1..]).join("lib64")
        })
    }

    /// Returns what a program needs to be built against the installed library; it is to be built
    /// in the scratch folder.
    pub(crate) fn flags(&self, package: &str) -> Option<Vec<String>> {
        self.installed();
        // By relative paths, which have no space whatever the folder's own name is: pkg-config
        // cannot tell it from the end of an argument.
        let pages = format!("tree{}/lib64/pkgconfig", self.prefix);
        let asked = Command::new("pkg-config")
            .args(["--cflags", "--libs", package])
            .env("PKG_CONFIG_SYSROOT_DIR", "tree")
            .env("PKG_CONFIG_PATH", pages)
            .current_dir(scratch())
            .output();
        let asked = found("pkg-config", asked)?;
        assert!(asked.status.success(), "{}", text(&asked.stderr));
        let flags = text(&asked.stdout);
        Some(flags.split_whitespace().map(str::to_owned).collect())
    }

    /// Checks what is installed, with a manual page for each of these functions.
    pub(crate) fn check_installed(&self, version: &str, functions: &BTreeSet<String>) {
        let libraries = self.installed();
        let place = libraries.parent().expect("a folder");
        for header in self.headers {
            assert!(place.join("include").join(header).is_file(), "{header}");
        }
        for function in functions {
            let page = place.join(format!("share/man/man3/{function}.3"));
            assert!(page.is_file(), "{}", page.display());
        }
        for package in self.packages {
            let file = libraries.join(format!("pkgconfig/{package}.pc"));
            let file = std::fs::read_to_string(file).expect("a pkg-config file");
            let lines = [
                format!("prefix={}\n", self.prefix),
                format!("Version: {version}\n"),
            ];
            assert!(lines.iter().all(|line| file.contains(line)), "{file}");
            assert!(!file.contains("/tree"), "{file}");
        }
        let library = libraries.join(self.name);
        let shared = std::fs::canonicalize(library.with_extension("so")).expect("the library");
        let [file, soname] = self.files;
        assert_eq!(shared.file_name().expect("a name"), file);
        for library in [&shared, &library.with_extension("a")] {
            let Some(sections) = run("objdump", &["-h", name(library)]) else {
                return;
            };
            let sections = text(&sections.stdout);
            assert!(sections.contains(".text"), "{}", library.display());
            assert!(!sections.contains(" .debug_"), "{}", library.display());
        }
        let library = libraries.join(soname);
        let tools = [("objdump", "-p"), ("nm", "--no-sort")];
        let answers = tools.map(|(tool, option)| run(tool, &[option, name(&library)]));
        let [Some(dynamic), Some(symbols)] = answers else {
            return;
        };
        let dynamic = text(&dynamic.stdout);
        let line = dynamic.lines().find(|line| line.contains("SONAME"));
        assert!(line.is_some_and(|line| line.ends_with(&format!(" {soname}"))));
        // The symbols of the program that built it.
        assert_eq!(text(&symbols.stdout), "");
    }
}
