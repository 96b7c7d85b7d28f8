//! Intel's ipsec-mb: its shared library, the kernels that it has for this processor, and calls of
//! them.
//!
//! The library is the one that `TARE_IPSEC_MB` names, and the system's otherwise. Its decryption
//! computes the tag and leaves the comparison to the caller; the comparison is not timed.

use crate::references::{Contender, Message, Op, Ours, AAD_LEN};
use std::error::Error as _;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::path::Path;
use std::ptr;

/// The library is for x86-64 alone.
#[cfg(not(target_arch = "x86_64"))]
macro_rules! is_x86_feature_detected {
    ($name:literal) => {
        has_feature_of_x86($name)
    };
}

#[cfg(not(target_arch = "x86_64"))]
fn has_feature_of_x86(_name: &str) -> bool {
    false
}

/// The environment variable with the path of the library to compare with.
pub const VARIABLE: &str = "TARE_IPSEC_MB";

const EXPECTED: &str = "ipsec-mb's shared library, libIPSec_MB.so";

/// A set of kernels by the end of their names, and a test that the processor runs it.
type KernelSet = (&'static str, fn() -> bool);

/// The sets of kernels, best first, under the conditions of the library's own dispatcher
/// (`init_mb_mgr_auto` and the functions that it calls, 2.0.2).
///
/// It asks for more than these kernels use, as one set of conditions serves all its algorithms: a
/// processor with VAES but without GFNI (Zen 3) gets `avx_gen4`, there and here. `avx512`
/// is the same code as `avx_gen4` in 2.0.2. Versions before 2.0 have `avx_gen2` for processors with
/// AVX but without AVX2.
const KERNEL_SETS: [KernelSet; 6] = [
    ("vaes_avx512", || {
        has_avx512() && has_vaes() && is_x86_feature_detected!("avx512ifma")
    }),
    ("avx512", has_avx512),
    ("vaes_avx2", || has_avx2() && has_vaes()),
    ("avx_gen4", has_avx2),
    ("avx_gen2", || has_sse() && is_x86_feature_detected!("avx")),
    ("sse", has_sse),
];

fn has_sse() -> bool {
    is_x86_feature_detected!("sse4.2")
        && is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("pclmulqdq")
}

fn has_avx2() -> bool {
    has_sse() && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2")
}

fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

fn has_vaes() -> bool {
    is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("gfni")
        && is_x86_feature_detected!("sha")
}

type Precompute = unsafe extern "C" fn(*const u8, *mut u8);
type Crypt = unsafe extern "C" fn(
    *const u8,
    *mut u8,
    *mut u8,
    *const u8,
    u64,
    *const u8,
    *const u8,
    u64,
    *mut u8,
    u64,
);
/// `imb_quic_aes_gcm`: manager, key, its size and the direction, arrays of destinations, sources,
/// lengths, nonces and additional data with its one length, tags with their length, packets.
type CryptBatch = unsafe extern "C" fn(
    *mut c_void,
    *const u8,
    c_int,
    c_int,
    *const *mut u8,
    *const *const u8,
    *const u64,
    *const *const u8,
    *const *const u8,
    u64,
    *const *mut u8,
    u64,
    u64,
);

/// Room for `struct gcm_key_data`: 1,264 bytes in 2.0.2, 1,008 in 1.3. Larger room would place
/// the keys of a batch in fewer sets of the first-level cache.
#[repr(C, align(64))]
struct KeyRoom([u8; 1280]);

/// Room for `struct gcm_context_data`: 88 bytes in 2.0.2.
#[repr(C, align(64))]
struct ContextRoom([u8; 256]);

/// The loaded library and its best kernels for this processor; never unloaded.
pub struct Library {
    /// The library's name with its version and the set of kernels, which every result carries.
    pub name: String,
    /// The file that was loaded.
    pub path: String,
    bits: usize,
    precompute: Precompute,
    encrypt: Crypt,
    decrypt: Crypt,
    /// The batch call and the manager that it takes, in versions that have it.
    batch: Option<(CryptBatch, *mut c_void)>,
}

impl Library {
    /// Loads the library that `TARE_IPSEC_MB` names, or the system's: `None`, with a line that says
    /// so, if the system has none.
    ///
    /// # Errors
    ///
    /// The variable names what does not load, or lacks the functions that are measured.
    pub fn find(key_bits: usize) -> Result<Option<&'static Self>, String> {
        if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            let loaded = Self::load(Path::new(&path), key_bits);
            return loaded
                .map(Some)
                .map_err(|problem| format!("{VARIABLE}: {problem}"));
        }
        let names = ["libIPSec_MB.so.1", "libIPSec_MB.so.2", "libIPSec_MB.so"];
        let found = names
            .iter()
            .find_map(|name| Self::load(Path::new(name), key_bits).ok());
        if found.is_none() {
            eprintln!("not measured: ipsec-mb ({VARIABLE}=/path/to/libIPSec_MB.so.2, or apt-get install libipsec-mb1)");
        }
        Ok(found)
    }

    fn load(path: &Path, bits: usize) -> Result<&'static Self, String> {
        let shown = path.display();
        // SAFETY: the library's constructors have no requirements, and it is never unloaded; the
        // signatures are those of its public header.
        unsafe {
            let library = libloading::Library::new(path).map_err(|error| {
                let reason = error.source().map_or(error.to_string(), |e| e.to_string());
                format!("{shown} does not load ({reason}); expected {EXPECTED}")
            })?;
            let library: &'static libloading::Library = Box::leak(Box::new(library));
            let version = library
                .get::<unsafe extern "C" fn() -> *const c_char>("imb_get_version_str")
                .map(|version| CStr::from_ptr(version()).to_string_lossy().into_owned())
                .map_err(|_| format!("{shown} has no imb_get_version_str; expected {EXPECTED}"))?;
            let kernel = |set: &str| {
                let name = |operation: &str| format!("aes_gcm_{operation}_{bits}_{set}");
                Some((
                    *library.get::<Precompute>(name("pre")).ok()?,
                    *library.get::<Crypt>(name("enc")).ok()?,
                    *library.get::<Crypt>(name("dec")).ok()?,
                ))
            };
            let runnable = || KERNEL_SETS.iter().filter(|(_, runs)| runs());
            let (set, (precompute, encrypt, decrypt)) = runnable()
                .find_map(|(set, _)| kernel(set).map(|functions| (*set, functions)))
                .ok_or_else(|| {
                    let sets: Vec<&str> = runnable().map(|(set, _)| *set).collect();
                    format!(
                        "{shown} is ipsec-mb {version} and exports no aes_gcm_{{pre,enc,dec}}_{bits}_SET \
                         with a SET that this processor runs; expected one of {sets:?}"
                    )
                })?;
            Ok(Box::leak(Box::new(Self {
                name: format!("ipsec-mb {version} {set}"),
                path: shown.to_string(),
                bits,
                precompute,
                encrypt,
                decrypt,
                batch: batch_call(library),
            })))
        }
    }

    /// Returns true if the library has a call for several messages.
    pub fn has_batches(&self) -> bool {
        self.batch.is_some()
    }

    /// The library under a key, as something to measure; its results have been compared with this
    /// crate's.
    pub fn contender(&'static self, key: &[u8]) -> IpsecMb {
        assert_eq!(key.len() * 8, self.bits, "a key of the kernels' length");
        let mut room = Box::new(KeyRoom([0; 1280]));
        // SAFETY: the key has the kernels' length, and the room is at least as long as the struct.
        unsafe { (self.precompute)(key.as_ptr(), room.0.as_mut_ptr()) };
        let mut contender = IpsecMb {
            library: self,
            key: room,
            context: Box::new(ContextRoom([0; 256])),
        };
        let mut ours = Ours(tare_gcm::Key::new(key).expect("16 or 32 bytes"));
        for op in [Op::Seal, Op::Open] {
            let [mut expected, mut found] = [(); 2].map(|()| Message::new(key, op, 300, 3, 0));
            ours.run(op, &mut expected);
            contender.run(op, &mut found);
            let same = expected.output[..] == found.output[..] && expected.tag == found.tag;
            assert!(same, "{} does not {} what it should", self.name, op.name());
        }
        contender
    }
}

/// `imb_quic_aes_gcm` and a manager for it. Of the library's interfaces for several messages it is
/// the one with the least work per message: it loops over the kernels for one message. Jobs and
/// bursts of them run the same kernels one message after the other (the burst calls for AEADs know
/// AES-CCM only in 2.0.2), so they are not measured.
unsafe fn batch_call(library: &libloading::Library) -> Option<(CryptBatch, *mut c_void)> {
    // SAFETY: as the caller says, the signatures are those of the public header; the manager is the
    // library's own and is never freed.
    unsafe {
        let batch = *library.get::<CryptBatch>("imb_quic_aes_gcm").ok()?;
        let allocate = *library
            .get::<unsafe extern "C" fn(u64) -> *mut c_void>("alloc_mb_mgr")
            .ok()?;
        let initialize = *library
            .get::<unsafe extern "C" fn(*mut c_void, *mut c_int)>("init_mb_mgr_auto")
            .ok()?;
        let manager = allocate(0);
        if manager.is_null() {
            return None;
        }
        initialize(manager, ptr::null_mut());
        Some((batch, manager))
    }
}

/// The library under one key.
pub struct IpsecMb {
    library: &'static Library,
    key: Box<KeyRoom>,
    context: Box<ContextRoom>,
}

impl IpsecMb {
    /// Seals or opens a batch by one call, and does nothing in a library without it. The kernels
    /// are those that the library's dispatcher chooses.
    pub fn run_batch(&self, op: Op, batch: &Batch<'_>) {
        let Some((crypt, manager)) = self.library.batch else {
            return;
        };
        // IMB_DIR_ENCRYPT and IMB_DIR_DECRYPT.
        let direction = if op == Op::Seal { 1 } else { 2 };
        // SAFETY: the arrays have one entry per message, whose buffers have the lengths passed and
        // are exclusively the batch's; the key was precomputed by the same library.
        unsafe {
            crypt(
                manager,
                self.key.0.as_ptr(),
                (self.library.bits / 8) as c_int,
                direction,
                batch.destinations.as_ptr(),
                batch.sources.as_ptr(),
                batch.lengths.as_ptr(),
                batch.nonces.as_ptr(),
                batch.aads.as_ptr(),
                AAD_LEN as u64,
                batch.tags.as_ptr(),
                16,
                batch.lengths.len() as u64,
            );
        }
    }
}

impl Contender for IpsecMb {
    fn name(&self) -> &str {
        &self.library.name
    }

    fn run(&mut self, op: Op, m: &mut Message) {
        let mut tag = [0u8; 16];
        let crypt = if op == Op::Seal {
            self.library.encrypt
        } else {
            self.library.decrypt
        };
        // SAFETY: all buffers have the lengths passed; the key was precomputed by the same library.
        unsafe {
            crypt(
                self.key.0.as_ptr(),
                self.context.0.as_mut_ptr(),
                m.output.as_mut_ptr(),
                m.input.as_ptr(),
                m.input.len() as u64,
                m.nonce.as_ptr(),
                m.aad.as_ptr(),
                m.aad.len() as u64,
                tag.as_mut_ptr(),
                16,
            );
        }
        if op == Op::Seal {
            m.tag = tag;
        }
    }
}

/// Messages as the batch call takes them: an array per argument.
pub struct Batch<'a> {
    destinations: Vec<*mut u8>,
    sources: Vec<*const u8>,
    lengths: Vec<u64>,
    nonces: Vec<*const u8>,
    aads: Vec<*const u8>,
    tags: Vec<*mut u8>,
    _messages: std::marker::PhantomData<&'a mut [Message]>,
}

impl<'a> Batch<'a> {
    /// Describes the messages; the tags that the call computes replace theirs.
    pub fn of(messages: &'a mut [Message]) -> Self {
        Self {
            sources: messages.iter().map(|m| m.input.as_ptr()).collect(),
            lengths: messages.iter().map(|m| m.input.len() as u64).collect(),
            nonces: messages.iter().map(|m| m.nonce.as_ptr()).collect(),
            aads: messages.iter().map(|m| m.aad.as_ptr()).collect(),
            destinations: messages.iter_mut().map(|m| m.output.as_mut_ptr()).collect(),
            tags: messages.iter_mut().map(|m| m.tag.as_mut_ptr()).collect(),
            _messages: std::marker::PhantomData,
        }
    }
}
