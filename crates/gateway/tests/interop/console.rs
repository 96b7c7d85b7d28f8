//! A guest under QEMU: its console to type at, and its network card's other end.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// The time that booting may take: seconds on an idle machine.
const BOOT_MAX: Duration = Duration::from_secs(300);

/// The time that a command may take.
const COMMAND_MAX: Duration = Duration::from_secs(300);

/// The longest frame that a card hands over.
const FRAME_MAX: usize = 2048;

/// The kernel's command line. An emulated timer may be late on a busy host, by which the kernel
/// takes it for broken and panics; and the self-tests of its ciphers were seen not to end.
const KERNEL_ARGUMENTS: &str =
    "console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests rdinit=/init";

/// A guest that runs. Dropped, it is stopped.
pub(crate) struct Guest {
    qemu: Child,
    keyboard: ChildStdin,
    lines: Receiver<String>,
    network: UnixDatagram,
    /// Of the network's two ends.
    _folder: tempfile::TempDir,
}

impl Guest {
    /// Boots a kernel with one network card, and waits until it says that it is up.
    pub(crate) fn boot(kernel: &Path, initramfs: &Path, mac: [u8; 6]) -> Guest {
        let folder = tempfile::tempdir().unwrap();
        let near = folder.path().join("near");
        let far = folder.path().join("far");
        let network = UnixDatagram::bind(&near).unwrap();
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args("-M q35 -accel tcg,thread=multi -cpu max,-erms,-fsrm -m 256 -smp 1".split(' '))
            .args("-nodefaults -no-reboot -display none -monitor none -serial stdio".split(' '))
            .args(["-append", KERNEL_ARGUMENTS])
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(initramfs)
            .args([
                "-device",
                &format!("virtio-net-pci,netdev=n,mac={mac},romfile="),
            ])
            .arg("-netdev")
            .arg(format!(
                "dgram,id=n,local.type=unix,local.path={},remote.type=unix,remote.path={}",
                far.display(),
                near.display()
            ))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut qemu = qemu.spawn().unwrap();
        let keyboard = qemu.stdin.take().unwrap();
        let screen = BufReader::new(qemu.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in screen.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_string();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let guest = Guest {
            qemu,
            keyboard,
            lines,
            network,
            _folder: folder,
        };
        guest.wait_until_up();
        guest.network.connect(&far).unwrap();
        guest
    }

    fn wait_until_up(&self) {
        let began = Instant::now();
        let mut seen = String::new();
        loop {
            match self
                .lines
                .recv_timeout(BOOT_MAX.saturating_sub(began.elapsed()))
            {
                // What firmware wrote may stand in front of it on the line.
                Ok(line) if line.ends_with("guest is up") => return,
                Ok(line) => seen = seen + &line + "\n",
                Err(error) => panic!("the guest did not boot: {error}\n{seen}"),
            }
        }
    }

    /// Types a command, hands frames that arrive meanwhile to `peer`, and gives what the command
    /// wrote.
    ///
    /// # Panics
    /// If it does not succeed.
    pub(crate) fn run_beside(
        &mut self,
        command: &str,
        peer: &mut dyn FnMut(&[u8]) -> Vec<Vec<u8>>,
    ) -> String {
        writeln!(self.keyboard, "{command}; echo exit status $?").unwrap();
        let began = Instant::now();
        let mut written = String::new();
        loop {
            self.answer(peer, Duration::from_millis(2));
            loop {
                match self.lines.try_recv() {
                    Ok(line) => {
                        if let Some((before, status)) = line.split_once("exit status ") {
                            written += before;
                            assert_eq!(status, "0", "{command}\n{written}");
                            return written;
                        }
                        written = written + &line + "\n";
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        panic!("the guest ended: {command}\n{written}")
                    }
                }
            }
            assert!(
                began.elapsed() < COMMAND_MAX,
                "no end: {command}\n{written}"
            );
        }
    }

    /// The same with nothing at the other end of the network.
    pub(crate) fn run(&mut self, command: &str) -> String {
        self.run_beside(command, &mut |_| Vec::new())
    }

    /// Sends a frame to the guest.
    pub(crate) fn send(&self, frame: &[u8]) {
        self.network.send(frame).unwrap();
    }

    /// The next frame of the guest; `None` if none comes in this time.
    pub(crate) fn receive(&self, wait: Duration) -> Option<Vec<u8>> {
        self.network.set_read_timeout(Some(wait)).unwrap();
        let mut frame = vec![0; FRAME_MAX];
        let len = self.network.recv(&mut frame).ok()?;
        frame.truncate(len);
        Some(frame)
    }

    /// Hands waiting frames to `peer` and sends what it answers.
    fn answer(&self, peer: &mut dyn FnMut(&[u8]) -> Vec<Vec<u8>>, wait: Duration) {
        while let Some(frame) = self.receive(wait) {
            for answer in peer(&frame) {
                self.send(&answer);
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
