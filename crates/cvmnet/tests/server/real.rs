//! The same scripts to memcached and redis-server and to ours: the same bytes come back.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tare_cvmnet::server::{Memcached, Resp, RespConfig, Service, Store};

use crate::peer::{at, Peer};
use crate::resp::array;

/// The longest that a server may take to start or to answer, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns true if a program is installed; prints a notice if not, and fails under CI.
fn has(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    if std::env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
        return true;
    }
    let notice = format!("NOT TESTED servers in the guest: as root: apt-get install {program}");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{notice}");
    // Past the capture of the test runner: what is not tested must be seen.
    let _ = writeln!(std::io::stderr(), "{notice}");
    false
}

/// A server at a socket in a folder of its own.
struct Real {
    process: Child,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Real {
    fn start(program: &str, arguments: &[&str]) -> Real {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let process = Command::new(program)
            .args(arguments)
            .arg(&socket)
            .current_dir(folder.path())
            .env(
                "PATH",
                std::env::var("PATH").unwrap_or_default() + ":/usr/sbin",
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let real = Real {
            process,
            socket,
            _folder: folder,
        };
        let started = Instant::now();
        while UnixStream::connect(&real.socket).is_err() {
            assert!(started.elapsed() < PATIENCE, "{program} does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        real
    }

    /// Sends a script on a new connection and reads until `last` or the end of the connection.
    fn ask(&self, script: &[u8], last: &[u8]) -> Vec<u8> {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let mut answer = Vec::new();
        std::thread::scope(|scope| {
            // It may end the connection before it has read all.
            scope.spawn(move || writer.write_all(script));
            let mut piece = vec![0; 1 << 16];
            while !answer.ends_with(last) {
                match stream.read(&mut piece) {
                    Ok(0) => break,
                    Ok(count) => answer.extend_from_slice(&piece[..count]),
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                    Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&answer)),
                }
            }
        });
        answer
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn memcached() -> Real {
    let flags = ["-U", "0", "-u", "root", "-t", "1", "-m", "64", "-s"];
    Real::start("memcached", &flags)
}

fn redis() -> Real {
    let flags = [
        "--port",
        "0",
        "--save",
        "",
        "--appendonly",
        "no",
        "--databases",
        "1",
        "--proto-max-bulk-len",
        "1mb",
        "--unixsocket",
    ];
    Real::start("redis-server", &flags)
}

/// A runner whose failures need no file: they print the script.
fn runner() -> TestRunner {
    TestRunner::new(Config {
        cases: 128,
        failure_persistence: None,
        ..Config::default()
    })
}

/// Asks both and returns their answers as text.
fn both(
    real: &Real,
    ours: &dyn Service,
    script: &[u8],
    end: &[u8],
    last: &[u8],
) -> (String, String) {
    let script = [script, end].concat();
    let theirs = real.ask(&script, last);
    let mut peer = Peer::new(ours);
    // The clock of the real one goes on; all times here are far from now.
    peer.time = at(1);
    peer.send(&script);
    let text = |bytes: Vec<u8>| bytes.escape_ascii().to_string().replace("\\r\\n", "\n");
    (text(theirs), text(peer.take()))
}

/// Asks both, again if their answers differ: the real one's clock may have gone on between two
/// commands of a script. Each script begins with an empty store.
fn both_redis(real: &Real, ours: &dyn Service, script: &[u8]) -> (String, String) {
    let script = [b"FLUSHALL\r\n", script].concat();
    let mut answers = both(real, ours, &script, RESP_END, RESP_LAST);
    for _ in 0..4 {
        if answers.0 != answers.1 {
            answers = both(real, ours, &script, RESP_END, RESP_LAST);
        }
    }
    answers
}

/// Asks for a value that no script has, so that the end of the answer is known.
const MEMCACHED_END: &[u8] = b"set end 77 0 8\r\nthe end.\r\nget end\r\n";
const MEMCACHED_LAST: &[u8] = b"VALUE end 77 8\r\nthe end.\r\nEND\r\n";
const RESP_END: &[u8] = b"*2\r\n$4\r\nECHO\r\n$8\r\nthe end.\r\n";
const RESP_LAST: &[u8] = b"$8\r\nthe end.\r\n";

#[test]
fn memcached_answers_the_same() {
    if !has("memcached") {
        return;
    }
    let real = memcached();
    let ours = Memcached::new(Arc::new(Mutex::new(Store::new(64 << 20))));
    let key = "k".repeat(250);
    let long = "k".repeat(251);
    let scripts = [
        // First, as the numbers of versions begin with 1.
        "set a 0 0 1\r\n1\r\ngets a\r\ncas a 0 0 1 1\r\n2\r\ngets a\r\ncas a 0 0 1 1\r\n3\r\n\
         cas none 0 0 1 1\r\n3\r\nincr a 3\r\ngets a\r\nappend a 0 0 1\r\nx\r\ngets a\r\n\
         cas a 0 0 1\r\ncas a 0 0 1 x\r\ncas a 0 0 1 5 noreply\r\n9\r\ngets a\r\n",
        "set a 5 0 3\r\nabc\r\nget a\r\nget a b a\r\ngets\r\nget\r\nget \r\n",
        "set a 0 0 3 noreply\r\nabc\r\nget a\r\nset a 0 0 0\r\n\r\nget a\r\n",
        "add a 1 0 1\r\nx\r\nadd a2 1 0 1\r\nx\r\nreplace a2 2 0 1\r\ny\r\nreplace a3 2 0 1\r\ny\r\n\
         append a2 9 0 2\r\nzz\r\nprepend a2 9 0 2\r\nww\r\nappend a4 9 0 2\r\nzz\r\nget a2\r\n",
        "delete a2\r\ndelete a2\r\ndelete a2 0\r\ndelete a2 1\r\ndelete\r\ndelete a2 noreply\r\n\
         delete a2 0 noreply\r\ndelete a2 noreply 0\r\ndelete a b c d\r\ndelete a2 nonsense\r\n",
        "set n 0 0 2\r\n10\r\nincr n 1\r\ndecr n 2\r\nget n\r\nincr n 1\r\nget n\r\ndecr n 100\r\n\
         get n\r\nincr n 18446744073709551615\r\nincr n 1\r\nincr n x\r\nincr n -1\r\nincr n\r\n\
         incr none 1\r\ndecr none 1 noreply\r\nset t 0 0 3\r\nabc\r\nincr t 1\r\nget n\r\n\
         set m 0 0 3\r\n1 2\r\nincr m 1\r\nset m 0 0 0\r\n\r\nincr m 1\r\nincr n 1 noreply\r\nget n\r\n",
        "touch n 0\r\ntouch none 0\r\ntouch n\r\ntouch n x\r\ntouch n 0 noreply\r\n\
         gat 0 n none t\r\ngats\r\ngat\r\ngat 0\r\ngat x n\r\ngat n\r\n",
        "set x 0 -1 1\r\nx\r\nget x\r\nset x 0 100 1\r\nx\r\nget x\r\ntouch x -1\r\nget x\r\n\
         set x 0 100 1\r\nx\r\ntouch x 0\r\nset y 0 1000000000 1\r\ny\r\nget y\r\ngat -1 x\r\nget x\r\n",
        "set a x 0 1\r\nset a 0 x 1\r\nset a 0 0 x\r\nset a 0 0 -1\r\nset a 0 0\r\nset a\r\nset\r\n",
        "set a 0 0 3\r\nabcdef\r\nget a\r\n",
        "set a 0 0 3\r\nab\r\nget a\r\nget a\r\n",
        "set a 0 0 3 noreply\r\nabcdef\r\n",
        "nonsense\r\nGET a\r\n\r\n   \r\nverbosity\r\nverbosity 1\r\nverbosity 1 noreply\r\n",
        "get a\nset a 0 0 1\nx\r\nget a\n   get    a   b  \r\n",
        "set q 0 0 1\r\nx\r\nquit\r\nget q\r\n",
        "flush_all\r\nget a n q\r\nset q 0 0 1\r\nx\r\nflush_all noreply\r\nget q\r\nflush_all x\r\n\
         flush_all 0\r\nflush_all 0 noreply\r\nset q 0 0 1\r\nx\r\nflush_all 1000\r\nget q\r\nflush_all\r\n",
        &format!("set {key} 0 0 1\r\nx\r\nget {key}\r\n"),
        // One at a time: memcached drops answers before that to a `get` of a key that is too long.
        &format!("set {long} 0 0 1\r\nx\r\n"),
        &format!("incr {long} 1\r\n"),
        &format!("get {long}\r\n"),
        &format!("get {key} {long} {key}\r\n"),
        &format!("delete {long}\r\n"),
        &format!("touch {long} 0\r\n"),
        &format!("set b 0 0 2000000\r\n{}\r\nget b\r\n", "x".repeat(2_000_000)),
        &format!("set b 0 0 1\r\nx\r\nset b 0 0 2000000\r\n{}\r\nget b\r\n", "x".repeat(2_000_000)),
        &format!("set b 7 0 600000\r\n{}\r\nget b\r\nget b b\r\n", "x".repeat(600_000)),
    ];
    for script in scripts {
        let (theirs, ours) = both(
            &real,
            &ours,
            script.as_bytes(),
            MEMCACHED_END,
            MEMCACHED_LAST,
        );
        assert!(
            theirs == ours,
            "{script:.500}\ntheirs: {theirs:.2000}\nours: {ours:.2000}"
        );
    }
}

#[test]
fn memcached_answers_the_same_to_random_commands() {
    if !has("memcached") {
        return;
    }
    let real = memcached();
    let ours = Memcached::new(Arc::new(Mutex::new(Store::new(64 << 20))));
    let key = || prop::sample::select(vec!["a", "b", "c"]);
    let value = prop_oneof![
        "[0-9]{0,3}".boxed(),
        // Not blanks alone: `incr` of memcached 1.6 reads on behind them, into older values.
        "([a-z][a-z ]{0,8})?".boxed(),
        "18446744073709551[0-9]{3}".boxed(),
    ];
    let name = prop::sample::select(vec!["set", "add", "replace", "append", "prepend"]);
    let noreply = || prop::sample::select(vec!["", "", " noreply"]);
    let command = prop_oneof![
        3 => (name, key(), 0..9_u32, prop::sample::select(vec![0, 0, 500, -1]), value, noreply())
            .prop_map(|(name, key, flags, until, value, noreply)| {
                format!("{name} {key} {flags} {until} {}{noreply}\r\n{value}\r\n", value.len())
            }),
        2 => (key(), key()).prop_map(|(a, b)| format!("get {a} {b}\r\n")),
        2 => (prop::sample::select(vec!["incr", "decr"]), key(), 0..2000_u64, noreply())
            .prop_map(|(name, key, delta, noreply)| format!("{name} {key} {delta}{noreply}\r\n")),
        1 => (key(), noreply()).prop_map(|(key, noreply)| format!("delete {key}{noreply}\r\n")),
        1 => (key(), prop::sample::select(vec![0, 900, -1]))
            .prop_map(|(key, until)| format!("touch {key} {until}\r\ngat {until} {key}\r\n")),
        1 => Just("flush_all\r\n".to_string()),
    ];
    let scripts = prop::collection::vec(command, 1..40);
    let done = runner().run(&scripts, |commands| {
        let script = format!("flush_all\r\n{}", commands.concat());
        let (theirs, ours) = both(
            &real,
            &ours,
            script.as_bytes(),
            MEMCACHED_END,
            MEMCACHED_LAST,
        );
        prop_assert_eq!(theirs, ours);
        Ok(())
    });
    done.unwrap();
}

#[test]
fn redis_answers_the_same() {
    if !has("redis-server") {
        return;
    }
    let real = redis();
    let config = RespConfig {
        value_max: 1 << 20,
        ..RespConfig::default()
    };
    let ours = Resp::new(Arc::new(Mutex::new(Store::new(64 << 20))), config);
    let large = "x".repeat(300_000);
    let value = [&b"set"[..], b"big", large.as_bytes()];
    let grown = [&b"append"[..], b"grown", &[b'x'; 700_000]];
    let mut scripts: Vec<Vec<u8>> = [
        "PING\r\nping hello\r\nPING a b\r\nECHO x\r\nECHO\r\nECHO a b\r\n",
        "GET a\r\nSET a 1\r\nGET a\r\nGET\r\nGET a b\r\nSET a\r\nSET\r\nGETSET a 2\r\nGETSET new 3\r\n\
         SETNX a 9\r\nSETNX fresh 9\r\nGET fresh\r\nSTRLEN a\r\nSTRLEN none\r\n",
        "SET a 1 NX\r\nSET n1 1 NX\r\nSET n2 1 XX\r\nSET a 5 XX\r\nSET a 6 GET\r\nSET n3 6 GET\r\n\
         SET a 7 NX GET\r\nSET n4 7 NX GET\r\nGET n4\r\nSET a 8 XX GET\r\nSET n5 8 XX GET\r\nGET n5\r\n\
         SET a 1 NX XX\r\nSET a 1 XX NX\r\nSET a 1 NX NX\r\nSET a 1 nonsense\r\nGET a\r\n",
        "SET e 1 EX 100\r\nTTL e\r\nSET e 2 KEEPTTL\r\nTTL e\r\nSET e 3\r\nTTL e\r\nTTL none\r\nPTTL none\r\n\
         SET e 1 EX 0\r\nSET e 1 EX -1\r\nSET e 1 PX 0\r\nSET e 1 EX x\r\nSET e 1 EX\r\nSET e 1 PX 100000 EX 1\r\n\
         SET e 1 EX 9223372036854775807\r\nSET e 1 PX 9223372036854775807\r\nSET e 1 KEEPTTL EX 1\r\n\
         SET e 1 EX 5 KEEPTTL\r\nSET e 1 ex 100 nx\r\nSET e 1 px 100000 xx\r\nTTL e\r\nGET e\r\n",
        "SET e 1\r\nEXPIRE e 100\r\nTTL e\r\nPEXPIRE e 50000\r\nTTL e\r\nPERSIST e\r\nPERSIST e\r\nTTL e\r\n\
         PERSIST none\r\nEXPIRE none 1\r\nEXPIRE e x\r\nEXPIRE e\r\nEXPIRE e 9223372036854775807\r\n\
         PEXPIRE e 9223372036854775807\r\nPEXPIRE e x\r\nEXPIRE e 1 nonsense\r\nEXPIRE e -1\r\nGET e\r\n\
         SET e 1\r\nEXPIRE e 0\r\nEXISTS e\r\nSET e 1\r\nPEXPIRE e 100000\r\nAPPEND e 0\r\nINCR e\r\nTTL e\r\n\
         GETSET e 1\r\nTTL e\r\n",
        "MSET a 1 b 2\r\nMGET a none b\r\nMSET a\r\nMSET a 1 b\r\nMSET\r\nMGET\r\nDEL a b none\r\nDEL\r\n\
         EXISTS a\r\nSET a 1\r\nEXISTS a a none\r\nDEL a a\r\n",
        "DEL n\r\nINCR n\r\nINCRBY n 10\r\nDECR n\r\nDECRBY n 20\r\nINCRBY n x\r\nINCRBY n 1.5\r\nINCRBY n +1\r\n\
         INCRBY n 01\r\nINCRBY n -0\r\nDECRBY n -9223372036854775808\r\nSET n 9223372036854775807\r\nINCR n\r\n\
         DECRBY n 9223372036854775807\r\nDECR n\r\nSET n -9223372036854775808\r\nDECR n\r\nGET n\r\n\
         SET n abc\r\nINCR n\r\nSET n 01\r\nINCR n\r\nSET n ' 1'\r\nINCR n\r\nSET n ''\r\nINCR n\r\nINCR\r\nINCRBY n\r\n",
        "DEL s\r\nAPPEND s abc\r\nAPPEND s def\r\nGET s\r\nSTRLEN s\r\nAPPEND s ''\r\nAPPEND s\r\n",
        "FLUSHALL\r\nDBSIZE\r\nMSET a 1 b 2\r\nDBSIZE\r\nFLUSHDB\r\nDBSIZE\r\nSET a 1\r\nFLUSHALL SYNC\r\n\
         FLUSHALL async\r\nDBSIZE\r\nFLUSHALL x\r\nFLUSHDB SYNC ASYNC\r\nDBSIZE x\r\n",
        "SELECT 0\r\nSELECT 1\r\nSELECT x\r\nSELECT\r\nHELLO 4\r\nHELLO x\r\n",
        "NONSENSE\r\nnonsense a b\r\nNOPE 'with blank' \"\\x41\\n\" c\r\n",
        "SET a \"quoted \\x41\\t\\q \\\" '\"\r\nGET a\r\nSET a 'single \\' \\n \"'\r\nGET a\r\nSET  a   b  \r\nGET a\r\n",
        "SET a \"\"\r\nGET a\r\nSET a x\"y\"\r\nGET a\r\n\r\n   \r\nPING\n",
        "CLIENT SETNAME x\r\nCLIENT SETNAME\r\nCLIENT SETNAME x y\r\nCLIENT nonsense\r\nCONFIG nonsense\r\n\
         CONFIG GET nosuchparameter\r\nCONFIG\r\nCLIENT\r\nCONFIG GET\r\n",
        "PING\r\nQUIT\r\nPING\r\n",
        "*0\r\n*-1\r\nPING\r\n",
        "*x\r\n",
        "*1\r\nPING\r\n",
        "*1\r\n$x\r\n",
        "*1\r\n$-1\r\n",
        "*1\r\n$1048577\r\n",
        "SET a \"unbalanced\r\n",
        "SET a 'x'y\r\n",
        "*3\r\n$3\r\nSET\r\n$1\r\nz\r\n$0\r\n\r\n*2\r\n$3\r\nget\r\n$1\r\nz\r\n",
    ]
    .iter()
    .map(|script| script.as_bytes().to_vec())
    .collect();
    scripts.push(
        [
            &array(&value)[..],
            b"GET big\r\nSTRLEN big\r\nMGET big none big\r\n",
        ]
        .concat(),
    );
    scripts.push(array(&grown).repeat(2));
    scripts.push(array(&[b"a\r\nb", b"c\r\nd"]));
    scripts.push(array(&[&[b'a'; 200], &[b'b'; 200], b"c"]));
    scripts.push(array(&[b"NOPE", &[b'b'; 100], &[b'c'; 100], b"d"]));
    for script in scripts {
        let (theirs, ours) = both_redis(&real, &ours, &script);
        let shown = script.escape_ascii();
        assert!(
            theirs == ours,
            "{shown:.500}\ntheirs: {theirs:.2000}\nours: {ours:.2000}"
        );
    }
}

#[test]
fn redis_answers_the_same_to_random_commands() {
    if !has("redis-server") {
        return;
    }
    let real = redis();
    let ours = Resp::new(
        Arc::new(Mutex::new(Store::new(64 << 20))),
        RespConfig::default(),
    );
    let key = || prop::sample::select(vec!["a", "b", "c"]);
    let value = || {
        prop_oneof![
            "-?[0-9]{1,3}".boxed(),
            "[a-z]{1,9}".boxed(),
            "922337203685477580[0-9]".boxed()
        ]
    };
    let option = prop::sample::select(vec![
        "",
        "",
        "NX",
        "XX",
        "GET",
        "KEEPTTL",
        "EX 100",
        "PX 100000",
        "nx get",
    ]);
    let one = prop::sample::select(vec![
        "GET", "INCR", "DECR", "TTL", "STRLEN", "PERSIST", "EXISTS", "DEL", "GETSET", "INCRBY",
    ]);
    let two = prop::sample::select(vec![
        "GETSET", "SETNX", "APPEND", "INCRBY", "DECRBY", "MSET", "EXPIRE", "MGET", "DEL", "EXISTS",
    ]);
    let command = prop_oneof![
        2 => (key(), value(), option.clone(), option).prop_map(|(key, value, first, second)| {
            format!("SET {key} {value} {first} {second}\r\n")
        }),
        2 => (one, key()).prop_map(|(name, key)| format!("{name} {key}\r\n")),
        2 => (two, key(), value()).prop_map(|(name, key, value)| format!("{name} {key} {value}\r\n")),
        1 => prop::sample::select(vec!["MGET a b c\r\n", "DBSIZE\r\n", "FLUSHALL\r\n"])
            .prop_map(str::to_string),
    ];
    let scripts = prop::collection::vec(command, 1..40);
    let done = runner().run(&scripts, |commands| {
        let script = commands.concat();
        let (theirs, ours) = both_redis(&real, &ours, script.as_bytes());
        prop_assert_eq!(theirs, ours, "{}", script);
        Ok(())
    });
    done.unwrap();
}
