use std::sync::Arc;

use proptest::prelude::*;
use tare_cvmnet::server::{Body, Output, PIECES_MAX};

#[test]
fn a_body_is_sent_from_where_it_lies_and_freed_when_it_was_sent() {
    let body: Body = Arc::new(vec![7; 100_000]);
    let mut out = Output::new(1 << 20);
    out.push(b"head");
    out.push_body(&body, 10..90_000);
    let pieces = out.pieces(16_384);
    assert_eq!(pieces.len(), 2);
    assert_eq!(pieces[0], b"head");
    assert_eq!(pieces[1].as_ptr(), body[10..].as_ptr());
    assert_eq!(pieces[1].len(), 16_380);
    out.consume(16_384);
    assert_eq!(out.pieces(usize::MAX)[0].as_ptr(), body[16_390..].as_ptr());
    assert_eq!(Arc::strong_count(&body), 2);
    out.consume(usize::MAX);
    assert_eq!((Arc::strong_count(&body), out.len()), (1, 0));
}

#[test]
fn a_range_that_is_not_within_its_body_is_cut() {
    let body: Body = Arc::new(vec![1; 1000]);
    let mut out = Output::new(1);
    out.push_body(&body, 2000..3000);
    assert!(out.is_empty() && out.has_room());
    out.push_body(&body, 100..3000);
    assert_eq!(out.len(), 900);
    assert!(!out.has_room());
}

#[derive(Clone, Debug)]
enum Step {
    Copy(usize),
    Own(usize),
    Body(usize, usize),
    Send(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..2000_usize).prop_map(Step::Copy),
        (0..20_000_usize).prop_map(Step::Own),
        (0..3000_usize, 0..3000_usize).prop_map(|(a, b)| Step::Body(a.min(b), a.max(b))),
        (0..9000_usize).prop_map(Step::Send),
    ]
}

proptest! {
    #[test]
    fn what_is_queued_is_sent_in_order_whatever_it_is_queued_as(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let body: Body = Arc::new((0..3000_u32).map(|i| ((i * 7) >> 3) as u8).collect());
        let mut out = Output::new(usize::MAX);
        let (mut expected, mut sent) = (Vec::new(), Vec::new());
        for step in steps.into_iter().chain([Step::Send(usize::MAX)]) {
            match step {
                Step::Copy(len) => {
                    expected.extend_from_slice(&body[..len]);
                    out.push(&body[..len]);
                }
                Step::Own(len) => {
                    let bytes: Vec<u8> = (0..len).map(|i| (i >> 2) as u8).collect();
                    expected.extend_from_slice(&bytes);
                    out.push_own(bytes);
                }
                Step::Body(start, end) => {
                    expected.extend_from_slice(&body[start..end]);
                    out.push_body(&body, start..end);
                }
                Step::Send(most) => loop {
                    let pieces = out.pieces(most);
                    prop_assert!(pieces.len() <= PIECES_MAX);
                    let bytes = pieces.concat();
                    prop_assert!(bytes.len() <= most);
                    sent.extend_from_slice(&bytes);
                    out.consume(bytes.len());
                    prop_assert!(sent.len() <= expected.len());
                    if bytes.is_empty() || most < usize::MAX {
                        break;
                    }
                },
            }
            prop_assert_eq!(out.len(), expected.len() - sent.len());
        }
        prop_assert!(sent == expected);
    }
}
