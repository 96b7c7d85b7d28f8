//! The instructions themselves, where this processor has them.

use tare_rdrand::instruction::{self, RdrandInstruction, RdseedInstruction};
use tare_rdrand::{Error, Rdrand, Rdseed};

/// The generator, or a loud note that the test could not run.
fn present<T>(made: Result<T, Error>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(error @ Error::Unsupported { .. }) => {
            eprintln!("NOT TESTED HERE: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn rdrand_fills_everything_it_is_asked_for() {
    let Some(mut rdrand) = present(Rdrand::new()) else {
        return;
    };
    let before = rdrand.counts().draws;
    let mut bytes = [0; 1001];
    rdrand.fill_bytes(&mut bytes).unwrap();
    assert_eq!(rdrand.counts().draws - before, 126);
    assert!(bytes.iter().filter(|&&byte| byte == 0).count() < 30);
    let mut values = [0_u64; 100];
    rdrand.fill_u64(&mut values).unwrap();
    assert!(values.iter().all(|&value| value != 0));
    let (mut v32, mut v16) = ([0_u32; 101], [0_u16; 103]);
    rdrand.fill_u32(&mut v32).unwrap();
    rdrand.fill_u16(&mut v16).unwrap();
    assert!(v32.iter().all(|&value| value != 0));
    assert!(v16.iter().filter(|&&value| value == 0).count() < 3);
    assert_ne!(rdrand.next_u64(), rdrand.next_u64());
    assert_ne!(
        [rdrand.next_u32(), rdrand.next_u32()],
        [rdrand.next_u32(), rdrand.next_u32()]
    );
    assert!((0..8)
        .map(|_| rdrand.next_u16().unwrap())
        .any(|value| value != 0));
}

#[test]
fn rdseed_fills_everything_it_is_asked_for() {
    let Some(mut rdseed) = present(Rdseed::new()) else {
        return;
    };
    let mut bytes = [0; 333];
    rdseed.fill_bytes(&mut bytes).unwrap();
    assert!(bytes.iter().filter(|&&byte| byte == 0).count() < 15);
}

#[test]
fn the_bare_loops_fill_and_count() {
    let Some(rdrand) = present(RdrandInstruction::detect()) else {
        return;
    };
    let (mut v64, mut v32, mut v16) = ([0; 64], [0; 64], [0; 64]);
    instruction::fill_u64(rdrand, &mut v64);
    instruction::fill_u32(rdrand, &mut v32);
    instruction::fill_u16(rdrand, &mut v16);
    assert!(v64.iter().all(|&value| value != 0) && v32.iter().all(|&value| value != 0));
    assert!(v16.iter().filter(|&&value| value == 0).count() < 3);
    assert!(instruction::count_rdrand_underflows(rdrand, 1000) <= 1000);
    let Some(rdseed) = present(RdseedInstruction::detect()) else {
        return;
    };
    assert!(instruction::count_rdseed_underflows(rdseed, 1000) <= 1000);
}

#[test]
fn two_hundred_threads_draw_at_once() {
    if present(Rdrand::new()).is_none() {
        return;
    }
    let threads: Vec<_> = (0..200)
        .map(|_| {
            std::thread::spawn(|| {
                let mut rdrand = Rdrand::new()?;
                let mut values = [0_u64; 512];
                rdrand.fill_u64(&mut values)?;
                Ok::<_, Error>(values)
            })
        })
        .collect();
    let mut all: Vec<u64> = threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap().unwrap())
        .collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 200 * 512);
}
