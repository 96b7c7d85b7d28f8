//! DSCP and ECN through a tunnel (RFC 6040): the outer header takes what the inner one has, and
//! congestion that was marked in the tunnel is carried over to the inner one.

const NOT_ECT: u8 = 0b00;
const ECT_1: u8 = 0b01;
const CE: u8 = 0b11;

/// Returns DSCP and ECN of the inner header after the tunnel; `None` if the packet is to be
/// dropped. RFC 6040, figure 4.
#[inline]
pub fn leaving(inner: u8, outer: u8) -> Option<u8> {
    // The rows and columns of the table in which nothing changes, as for nearly all packets.
    let (inner_ecn, outer_ecn) = (inner & 3, outer & 3);
    if outer_ecn == inner_ecn || outer_ecn == NOT_ECT {
        return Some(inner);
    }
    let ecn = match (inner_ecn, outer_ecn) {
        (NOT_ECT, CE) => return None,
        (NOT_ECT, _) => NOT_ECT,
        (_, CE) => CE,
        (CE, _) => CE,
        (_, ECT_1) => ECT_1,
        (inner, _) => inner,
    };
    Some(inner & !3 | ecn)
}

/// Returns true if the inner header is left as it is because the outer one has Not-ECT or the same
/// as the inner one; there are other cases in which [`leaving`] changes nothing.
#[inline(always)]
pub(crate) fn leaves(inner: u8, outer: u8) -> bool {
    outer & 3 == NOT_ECT || (outer ^ inner) & 3 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_rfc_6040() {
        const ECT_0: u8 = 0b10;
        // Rows: inner; columns: outer Not-ECT, ECT(0), ECT(1), CE.
        let table = [
            (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
            (ECT_0, [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]),
            (ECT_1, [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]),
            (CE, [Some(CE), Some(CE), Some(CE), Some(CE)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in [NOT_ECT, ECT_0, ECT_1, CE].into_iter().zip(row) {
                let dscp = 0b1011_1000;
                let found = leaving(dscp | inner, outer);
                assert_eq!(found, expected.map(|ecn| dscp | ecn), "{inner} {outer}");
                let is_plain = outer == NOT_ECT || usize::from(outer) == usize::from(inner);
                assert_eq!(leaves(dscp | inner, outer), is_plain, "{inner} {outer}");
            }
        }
    }
}
