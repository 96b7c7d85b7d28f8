//! The machine code of the loops over shared memory.
//!
//! The loads and stores of the shared side are instructions that the compiler does not choose by
//! itself (see `src/x86/once.rs`), so they can be told apart from all others here. In every loop of
//! the bulk code there must be exactly one for each register of the step, at distinct places that
//! cover the step, and no other instruction may access memory through the registers that hold the
//! source's and the destination's address.

use std::collections::BTreeSet;
use std::process::Command;
use tare_gcm::{Key, Path};

struct Instruction {
    address: u64,
    text: String,
}

struct Function {
    name: String,
    body: Vec<Instruction>,
}

/// This program's own functions, disassembled; `None` without objdump.
fn disassemble() -> Option<Vec<Function>> {
    let own = std::env::current_exe().ok()?;
    let output = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .arg(own)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut functions: Vec<Function> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line
            .strip_suffix(">:")
            .and_then(|l| l.split_once('<'))
            .map(|(_, name)| name)
        {
            functions.push(Function {
                name: name.to_owned(),
                body: Vec::new(),
            });
        } else if let (Some(function), Some((address, text))) =
            (functions.last_mut(), line.trim().split_once(':'))
        {
            if let Ok(address) = u64::from_str_radix(address, 16) {
                function.body.push(Instruction {
                    address,
                    text: text.trim().to_owned(),
                });
            }
        }
    }
    Some(functions)
}

/// The memory operand `disp(base,index,scale)` of an instruction, as displacement, base and index.
fn memory(text: &str) -> Option<(i64, String, Option<String>)> {
    let close = text.rfind(')')?;
    let open = text[..close].rfind('(')?;
    let mut registers = text[open + 1..close].split(',').map(str::to_owned);
    let start = text[..open].rfind([' ', ',']).map_or(0, |i| i + 1);
    let displacement = match &text[start..open] {
        "" => 0,
        d => match d.strip_prefix('-') {
            Some(d) => -i64::from_str_radix(d.strip_prefix("0x")?, 16).ok()?,
            None => i64::from_str_radix(d.strip_prefix("0x")?, 16).ok()?,
        },
    };
    Some((
        displacement,
        registers.next()?,
        registers.next().filter(|r| r.starts_with('%')),
    ))
}

/// The kernels: their path, and their module's name as symbols have it. The path of 128 bits has
/// two encodings.
const MODULES: [(Path, &str); 4] = [
    (Path::Vaes512, "7vaes512"),
    (Path::Vaes256, "7vaes256"),
    (Path::AesNi, "5aesni"),
    (Path::AesNi, "9aesni_avx"),
];

/// Returns true for a store of the shared side, false for a load, `None` for other instructions.
fn shared_access(path: Path, text: &str) -> Option<bool> {
    let (opcode, operands) = text.split_once(char::is_whitespace)?;
    let operands = operands.trim();
    let stores = operands.ends_with(')');
    let ours = match path {
        Path::Vaes512 => opcode == "vmovdqu8",
        Path::Vaes256 => {
            opcode == if stores { "vmovupd" } else { "vlddqu" } && operands.contains("%ymm")
        }
        Path::AesNi => {
            opcode.strip_prefix('v').unwrap_or(opcode) == if stores { "movupd" } else { "lddqu" }
        }
        Path::Neon | Path::Portable => false,
    };
    (ours && memory(operands).is_some()).then_some(stores)
}

/// Returns the target of a jump, as an index into the function.
fn jump(function: &Function, at: usize) -> Option<usize> {
    let (opcode, target) = function.body[at].text.split_once(char::is_whitespace)?;
    let target = u64::from_str_radix(target.split_whitespace().next()?, 16).ok()?;
    let body = &function.body;
    opcode
        .starts_with('j')
        .then(|| body.binary_search_by_key(&target, |i| i.address).ok())?
}

/// Returns true if control gets from `start` to `end` by instructions between them. If so, a jump
/// back from `end` makes a loop; otherwise it only goes to an end that several ways share. A call
/// through a table ends a way: it is a check that panics (see [`kernels_call_nothing`]).
fn is_loop(function: &Function, start: usize, end: usize) -> bool {
    let mut seen = vec![false; end - start + 1];
    let mut next = vec![start];
    while let Some(at) = next.pop() {
        if at < start || at > end || seen[at - start] {
            continue;
        }
        seen[at - start] = true;
        let text = &function.body[at].text;
        next.extend(jump(function, at));
        let is_panic = text.starts_with("call") && text.contains(" *");
        let ends_here = ["jmp", "ret", "ud2"];
        if !is_panic && !ends_here.iter().any(|opcode| text.starts_with(opcode)) {
            next.push(at + 1);
        }
    }
    seen[end - start]
}

/// The innermost loops of a function, as ranges of instructions: from the target of a jump back to
/// the jump.
fn loops(function: &Function) -> Vec<&[Instruction]> {
    let found: Vec<(usize, usize)> = (0..function.body.len())
        .filter_map(|end| Some((jump(function, end)?, end)))
        .filter(|&(start, end)| start <= end && is_loop(function, start, end))
        .collect();
    let innermost = |&(start, end): &(usize, usize)| {
        !found
            .iter()
            .any(|&(s, e)| (s, e) != (start, end) && s >= start && e <= end)
    };
    found
        .iter()
        .filter(|range| innermost(range))
        .map(|&(s, e)| &function.body[s..=e])
        .collect()
}

#[test]
fn bulk_loops_load_and_store_each_byte_once() {
    let Some(functions) = disassemble().filter(|f| !f.is_empty()) else {
        eprint_always!("NOT TESTED: objdump is not installed, so the machine code is not read");
        return;
    };
    for (path, module) in MODULES {
        let (register_len, registers) = match path {
            Path::Vaes512 => (64, 4),
            Path::Vaes256 => (32, 4),
            _ => (16, 8),
        };
        // Makes the linker keep the path.
        let _ = Key::with_path(&[0; 16], path);
        let mut checked = 0;
        let of_path = |f: &&Function| f.name.contains("tare_gcm") && f.name.contains(module);
        for function in functions.iter().filter(of_path).filter(|f| {
            ["5steps", "4long", "11long_staged"]
                .iter()
                .any(|part| f.name.contains(part))
        }) {
            for body in loops(function) {
                let accesses: Vec<(bool, &str)> = body
                    .iter()
                    .filter_map(|i| {
                        shared_access(path, &i.text).map(|stores| (stores, &i.text[..]))
                    })
                    .collect();
                let is_bulk =
                    body.iter().filter(|i| i.text.contains("aesenc")).count() >= 9 * registers;
                if !is_bulk {
                    continue;
                }
                checked += 1;
                let mut bases = BTreeSet::new();
                for stores in [false, true] {
                    let places: Vec<(i64, String, Option<String>)> = accesses
                        .iter()
                        .filter(|(s, _)| *s == stores)
                        .filter_map(|(_, text)| memory(text))
                        .collect();
                    let offsets: BTreeSet<i64> =
                        places.iter().map(|(offset, ..)| *offset).collect();
                    let first = *offsets.first().expect("a bulk loop accesses shared memory");
                    let expected: BTreeSet<i64> = (0..registers as i64)
                        .map(|i| first + i * register_len)
                        .collect();
                    let name = &function.name;
                    assert_eq!(
                        places.len(),
                        registers,
                        "{name}: accesses in the loop, stores: {stores}"
                    );
                    assert_eq!(
                        offsets, expected,
                        "{name}: places in the step, stores: {stores}"
                    );
                    for (_, base, index) in places {
                        bases.insert((base, index));
                    }
                }
                assert!(
                    bases.len() <= 2,
                    "{}: one source and one destination: {bases:?}",
                    function.name
                );
                for instruction in body {
                    let Some((_, base, index)) = memory(&instruction.text) else {
                        continue;
                    };
                    // These name an address without loading from it.
                    let is_no_access = ["lea", "prefetch"]
                        .iter()
                        .any(|op| instruction.text.starts_with(op))
                        || instruction.text.contains("nop");
                    if shared_access(path, &instruction.text).is_some() || is_no_access {
                        continue;
                    }
                    assert!(
                        !bases.contains(&(base, index)),
                        "{}: another access through the shared side's registers: {}",
                        function.name,
                        instruction.text
                    );
                }
            }
        }
        // Sealing and opening, both key sizes, whole messages and pieces: at least eight loops.
        assert!(
            checked >= 8,
            "{module}: only {checked} bulk loops found in the machine code"
        );
        println!("{module}: {checked} bulk loops, {registers} loads and {registers} stores of {register_len} bytes each");
    }
}

/// A function that the compiler left out of line lacks the instructions that its caller enables,
/// and registers go to it and come back through memory: a packet of 15 ns took 45.
#[test]
fn kernels_call_nothing() {
    let Some(functions) = disassemble().filter(|f| !f.is_empty()) else {
        eprint_always!("NOT TESTED: objdump is not installed, so the machine code is not read");
        return;
    };
    for path in [Path::Vaes512, Path::Vaes256, Path::AesNi] {
        let _ = Key::with_path(&[0; 16], path);
    }
    let mut kernels = 0;
    for function in &functions {
        let name = &function.name;
        // Whole messages and pieces of each path, and four packets at once.
        let is_kernel = name.contains("tare_gcm6native")
            && [
                "5whole",
                "4long",
                "5steps",
                "6finish",
                "5begin",
                "9seal_four",
                "9open_four",
            ]
            .iter()
            .any(|part| name.contains(part));
        if !is_kernel {
            continue;
        }
        kernels += 1;
        for instruction in &function.body {
            // What is called through a table is not of this crate: a check that panics, in a build
            // that checks.
            let call = instruction.text.strip_prefix("call ").map(str::trim);
            // The part whose stack is wiped is called, with nothing in vector registers.
            let is_part = |to: &str| to.contains("4long");
            let ours = call
                .is_some_and(|to| !to.starts_with('*') && !to.contains("panic") && !is_part(to));
            assert!(!ours, "{name}: {}", instruction.text);
        }
    }
    // Of each module and key size three ways in, sealing and opening, and one to begin with; on the
    // widest path four at once.
    assert!(kernels >= 4 * 16 + 6, "only {kernels} kernels found");
}

/// The kernels that spill secrets are followed by a wipe, by a fixed number of stores: what such a
/// function uses of the stack must not be more.
#[test]
fn a_wipe_covers_all_that_its_kernel_uses_of_the_stack() {
    let Some(functions) = disassemble().filter(|f| !f.is_empty()) else {
        eprint_always!("NOT TESTED: objdump is not installed, so the machine code is not read");
        return;
    };
    // Builds with checks use more, and are wiped by a function.
    if cfg!(debug_assertions) {
        return;
    }
    for ((path, module), store, width) in [
        (MODULES[1], "vmovdqu %ymm0,", 32),
        (MODULES[2], "movups %xmm0,", 16),
        (MODULES[3], "vmovdqu %ymm0,", 32),
    ] {
        let _ = Key::with_path(&[0; 16], path);
        let mut kernels = 0;
        let of_path = |f: &&Function| f.name.contains("tare_gcm") && f.name.contains(module);
        let whole = |f: &&Function| f.name.contains("5whole");
        let wiped = functions
            .iter()
            .filter(of_path)
            .filter(whole)
            .map(|f| wiped_below(f, store, width) - pushed(f))
            .min()
            .expect("the callers of kernels");
        for function in &functions {
            let name = &function.name;
            if !(name.contains("tare_gcm") && name.contains(module) && name.contains("4long")) {
                continue;
            }
            kernels += 1;
            let used = stack_used(function);
            assert!(
                used <= wiped,
                "{name}: {used} bytes of the stack, {wiped} wiped"
            );
            // It is not about places that the function does not have.
            assert!(used > 64, "{name}: {used}");
        }
        assert!(kernels >= 4, "{module}: only {kernels} kernels found");
    }
}

/// Kernels that are not followed by a wipe must keep secrets in registers. What the compiler would
/// move to the stack and back are round keys, or the cipher's state after some round, which with
/// the nonce tells of the key. (The mask of the tag has a place of its own, which is wiped.)
#[test]
fn kernels_without_a_wipe_take_no_secret_back_from_the_stack() {
    let Some(functions) = disassemble().filter(|f| !f.is_empty()) else {
        eprint_always!("NOT TESTED: objdump is not installed, so the machine code is not read");
        return;
    };
    // Builds with checks use more, and are wiped by a function.
    if cfg!(debug_assertions) {
        return;
    }
    // Longer messages on registers of 512 bits are not followed by a wipe either. The nonce and the
    // lengths may be on the stack there.
    for (path, module, long) in [
        (Path::Vaes512, "7vaes512", Some("4long")),
        (Path::Vaes256, "7vaes256", None),
        (Path::AesNi, "5aesni", None),
        (Path::AesNi, "9aesni_avx", None),
    ] {
        let _ = Key::with_path(&[0; 16], path);
        let mut kernels = 0;
        for function in &functions {
            let name = &function.name;
            let is_long = long.is_some_and(|long| name.contains(long));
            let is_short = name.contains("5whole") || name.contains("16whole_after_much");
            if !(name.contains("tare_gcm") && name.contains(module) && (is_long || is_short)) {
                continue;
            }
            kernels += 1;
            let taken: BTreeSet<i64> = function
                .body
                .iter()
                .filter_map(|instruction| {
                    // The last operand is where the result goes.
                    let to = instruction.text.rsplit(',').next()?;
                    let (displacement, base, _) = memory(&instruction.text)?;
                    (base == "%rsp" && to.starts_with('%') && to.contains("mm"))
                        .then_some(displacement)
                })
                .collect();
            let public = if is_long { 2 } else { 0 };
            assert!(
                taken.len() <= public,
                "{name} takes registers back from {taken:x?}"
            );
        }
        // Two key sizes, sealing and opening, little and much additional data.
        let least = if long.is_some() { 12 } else { 8 };
        assert!(kernels >= least, "{module}: only {kernels} kernels found");
    }
}

/// Bytes right below its stack that a function overwrites, by stores of `width` bytes.
fn wiped_below(function: &Function, store: &str, width: i64) -> i64 {
    let below = |i: &Instruction| {
        let (displacement, base, _) = memory(i.text.strip_prefix(store)?)?;
        (base == "%rsp").then_some(-displacement)
    };
    let places: BTreeSet<i64> = function.body.iter().filter_map(below).collect();
    (1..).take_while(|n| places.contains(&(n * width))).count() as i64 * width
}

/// Bytes of arguments that a function pushes for the kernel that it calls: the wipe begins above
/// them.
fn pushed(function: &Function) -> i64 {
    let calls = function.body.windows(2).filter_map(|pair| {
        let call = pair[0].text.starts_with("call") && pair[0].text.contains("4long");
        let amount = pair[1]
            .text
            .strip_prefix("add ")?
            .trim()
            .strip_prefix("$0x")?;
        let amount = i64::from_str_radix(amount.strip_suffix(",%rsp")?, 16).ok()?;
        call.then_some(amount)
    });
    calls.max().unwrap_or(0)
}

/// Bytes that a function uses of the stack, with its return address.
fn stack_used(function: &Function) -> i64 {
    let number = |text: &str| i64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let (mut frame, mut below) = (8, 0);
    for instruction in &function.body {
        let text = &instruction.text;
        if text.starts_with("push") {
            frame += 8;
        } else if let Some(rest) = text.strip_prefix("sub ") {
            let amount = rest
                .trim()
                .strip_prefix('$')
                .and_then(|r| r.strip_suffix(",%rsp"));
            frame += amount.and_then(number).unwrap_or(0);
        } else if text.starts_with("add") && text.contains("$0xffffffffffffff80,%rsp") {
            frame += 128;
        } else if text.starts_with("and") && text.ends_with(",%rsp") {
            // Aligned to that of the widest register.
            frame += 64;
        }
        if let Some((displacement, base, _)) = memory(text) {
            if base == "%rsp" {
                below = below.max(-displacement);
            }
        }
    }
    frame + below
}

/// While the upper parts of registers are in use, an instruction of the encoding before AVX merges
/// with them: on a processor of Intel one load and two stores of this kind made a message of 150 ns
/// take 380.
#[test]
fn kernels_with_avx_use_no_instruction_of_the_encoding_before_it() {
    let Some(functions) = disassemble().filter(|f| !f.is_empty()) else {
        eprint_always!("NOT TESTED: objdump is not installed, so the machine code is not read");
        return;
    };
    for (path, _) in MODULES {
        let _ = Key::with_path(&[0; 16], path);
    }
    let parts = [
        "7vaes512",
        "7vaes256",
        "9aesni_avx",
        "9seal_four",
        "9open_four",
    ];
    let mut instructions = 0;
    for function in functions
        .iter()
        .filter(|f| f.name.contains("tare_gcm6native"))
    {
        if !parts.iter().any(|part| function.name.contains(part)) {
            continue;
        }
        for instruction in &function.body {
            let text = &instruction.text;
            assert!(
                text.starts_with('v') || !text.contains("%xmm"),
                "{}: {text}",
                function.name
            );
            instructions += usize::from(text.contains("mm"));
        }
    }
    assert!(instructions > 1000, "the code was not found");
}

/// Secrets are in vector registers only, and nothing makes flags, masks or addresses of those: so
/// no branch and no address depends on secrets. Words do leave for general registers (the tag; a
/// word of the first round key that goes into the counter block), by moves that set no flags.
#[test]
fn no_flag_mask_or_address_is_made_of_vector_data() {
    let Some(functions) = disassemble().filter(|f| !f.is_empty()) else {
        eprint_always!("NOT TESTED: objdump is not installed, so the machine code is not read");
        return;
    };
    for (path, module) in MODULES {
        let _ = Key::with_path(&[0; 16], path);
        let mut instructions = 0;
        for function in functions
            .iter()
            .filter(|f| f.name.contains("tare_gcm") && f.name.contains(module))
        {
            for instruction in &function.body {
                let opcode = instruction.text.split_whitespace().next().unwrap_or("");
                let makes_flags = [
                    "vptest",
                    "ptest",
                    "vpmovmskb",
                    "pmovmskb",
                    "vmovmsk",
                    "movmsk",
                    "kortest",
                    "ktest",
                ]
                .iter()
                .chain(&[
                    "vcomis",
                    "comis",
                    "vucomis",
                    "ucomis",
                    "vpcmp",
                    "pcmp",
                    "vpgather",
                    "vpscatter",
                ])
                .any(|bad| opcode.starts_with(bad) && !instruction.text.contains("vpcmpeqd %ymm"));
                let mask_to_general = opcode.starts_with("kmov")
                    && instruction.text.contains("%k")
                    && instruction
                        .text
                        .rsplit(',')
                        .next()
                        .is_some_and(|to| !to.contains("%k"));
                assert!(
                    !makes_flags && !mask_to_general,
                    "{}: {}",
                    function.name,
                    instruction.text
                );
                instructions += 1;
            }
        }
        assert!(instructions > 1000, "{module}: its code was not found");
    }
}
