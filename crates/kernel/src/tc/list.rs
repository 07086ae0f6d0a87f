// SPDX-License-Identifier: Apache-2.0
//! Reads of single queueing disciplines and classes, and of filters. The kernel can only list the
//! disciplines of all links at once, so each one is requested by itself.

use ::netlink::{Attrs, Errno, Message, u32_at};

use super::filter::{self, Filter};
use super::{
    HEADER_LEN, Handle, Header, RTM_GETQDISC, RTM_GETTCLASS, RTM_GETTFILTER, TCA_HTB_INIT,
    TCA_HTB_PARMS, TCA_HTB_RATE64, TCA_KIND, TCA_OPTIONS, TCA_TBF_PARMS, TCA_TBF_RATE64,
};
use crate::error::{Error, Result};
use crate::request::Netlink;
use crate::types::IfIndex;

/// Without this flag the kernel sends the reply to all listeners except the requester
/// (`linux/netlink.h`).
const NLM_F_ECHO: u16 = 0x08;
/// Without this flag the kernel does not answer if the parent exists but has no discipline
/// (`linux/netlink.h`).
const NLM_F_ACK: u16 = 0x04;

/// A queueing discipline as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedQdisc {
    /// `tbf`, `noqueue`, …
    pub kind: String,
    /// Handle; 0 if none was assigned.
    pub handle: Handle,
    /// Token bucket of a `tbf`.
    pub bucket: Option<ObservedBucket>,
    /// Queue limit of a `tbf` or `bfifo` in bytes.
    pub limit: Option<u32>,
    /// Minor number of the default class of an `htb`.
    pub default: Option<u32>,
}

/// A token bucket as read from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedBucket {
    /// Rate in bytes per second.
    pub rate: u64,
    /// Time to fill the bucket in ticks, truncated to 32 bits.
    pub ticks: u32,
}

/// Returns the queueing discipline of a parent: the root, the ingress or a class of a link.
pub fn qdisc_at(nl: &Netlink, link: IfIndex, parent: Handle) -> Result<Option<ObservedQdisc>> {
    let message = Header::new(link, Handle(0), parent).start(RTM_GETQDISC, NLM_F_ECHO | NLM_F_ACK);
    get(nl, &message, "find qdisc", link, parent)?.map_or(Ok(None), |bytes| Ok(parse_qdisc(&bytes)))
}

/// Returns the token bucket of an `htb` class.
pub fn class_by_handle(
    nl: &Netlink,
    link: IfIndex,
    class: Handle,
) -> Result<Option<ObservedBucket>> {
    let message = Header::new(link, class, Handle(0)).start(RTM_GETTCLASS, NLM_F_ECHO | NLM_F_ACK);
    get(nl, &message, "find class", link, class)?.map_or(Ok(None), |bytes| Ok(parse_class(&bytes)))
}

/// Lists the filters of a parent that this module could have created; empty if the parent does not
/// exist.
pub fn filters_of(nl: &Netlink, link: IfIndex, parent: Handle) -> Result<Vec<Filter>> {
    let message = Header::new(link, Handle(0), parent).start(RTM_GETTFILTER, 0);
    match nl.dump("list filters", &message, filter::parse) {
        Err(error) if error.errno == Errno::INVAL => Ok(Vec::new()),
        other => other,
    }
}

fn get(
    nl: &Netlink,
    message: &Message,
    op: &'static str,
    link: IfIndex,
    parent: Handle,
) -> Result<Option<Vec<u8>>> {
    match nl.socket().get(message) {
        Ok((_, payload)) => Ok(Some(payload)),
        // Depending on kernel and parent: it does not exist, or is a default that the kernel does
        // not report.
        Err(cause) if matches!(cause.errno, Errno::NOENT | Errno::INVAL | Errno::NODATA) => {
            Ok(None)
        }
        Err(cause) => Err(Error::new(op, format!("of {link} at {parent}"), cause)),
    }
}

fn parse_qdisc(payload: &[u8]) -> Option<ObservedQdisc> {
    let header = Header::parse(payload)?;
    let attrs = Attrs::after(payload, HEADER_LEN);
    let kind = attrs.find_kind(TCA_KIND)?.str()?.to_owned();
    let mut observed =
        ObservedQdisc { kind, handle: header.handle, bucket: None, limit: None, default: None };
    let Some(options) = attrs.find_kind(TCA_OPTIONS) else { return Some(observed) };
    match observed.kind.as_str() {
        "tbf" => {
            let parms = options.nested().find_kind(TCA_TBF_PARMS)?.payload;
            observed.limit = u32_at(parms, 24);
            observed.bucket = parse_bucket(parms, 28, &options.nested(), TCA_TBF_RATE64);
        }
        "htb" => {
            let glob = options.nested().find_kind(TCA_HTB_INIT)?.payload;
            observed.default = u32_at(glob, 8);
        }
        "bfifo" => observed.limit = u32_at(options.payload, 0),
        _ => {}
    }
    Some(observed)
}

fn parse_class(payload: &[u8]) -> Option<ObservedBucket> {
    let attrs = Attrs::after(payload, HEADER_LEN);
    let options = attrs.find_kind(TCA_OPTIONS)?.nested();
    parse_bucket(options.find_kind(TCA_HTB_PARMS)?.payload, 24, &options, TCA_HTB_RATE64)
}

/// Parses a token bucket. Both structures start with `struct tc_ratespec`; the offset of the ticks
/// differs.
fn parse_bucket(
    parms: &[u8],
    ticks_offset: usize,
    options: &Attrs<'_>,
    rate64: u16,
) -> Option<ObservedBucket> {
    let wide = options.find_kind(rate64).and_then(|rate| rate.u64());
    let rate = wide.unwrap_or(u64::from(u32_at(parms, 8)?));
    Some(ObservedBucket { rate, ticks: u32_at(parms, ticks_offset)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tc::{Bucket, Qdisc, replace_class, replace_qdisc};

    #[test]
    fn qdiscs_and_classes_round_trip() {
        let read = |qdisc: Qdisc| {
            let request = replace_qdisc(IfIndex(7), Handle::ROOT, Handle::new(1, 0), &qdisc);
            parse_qdisc(&request.message.to_bytes()[16..]).unwrap()
        };
        let tbf = read(Qdisc::Tbf(Bucket { rate: 1 << 33, burst: 1 << 30 }, 99));
        assert_eq!(
            (tbf.kind.as_str(), tbf.handle, tbf.limit),
            ("tbf", Handle::new(1, 0), Some(99))
        );
        assert_eq!(tbf.bucket, Some(ObservedBucket { rate: 1 << 33, ticks: 1_953_125 }));
        assert_eq!(read(Qdisc::Htb(7)).default, Some(7));
        assert_eq!(read(Qdisc::Bfifo(77)).limit, Some(77));
        assert_eq!(read(Qdisc::Ingress).kind, "ingress");
        let bucket = Bucket { rate: 1000, burst: 1000 };
        let class = replace_class(IfIndex(7), Handle::new(2, 0), Handle::new(2, 1), bucket);
        let observed = parse_class(&class.message.to_bytes()[16..]);
        assert_eq!(observed, Some(ObservedBucket { rate: 1000, ticks: 15_625_000 }));
    }

    proptest! {
        #[test]
        fn parsers_never_panic(mut bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = (parse_qdisc(&bytes), parse_class(&bytes));
            bytes.resize(HEADER_LEN, 0);
            bytes.extend_from_slice(b"\x08\0\x01\0tbf\0");
            bytes.extend_from_slice(&tail);
            let _ = (parse_qdisc(&bytes), parse_class(&bytes));
        }
    }
}
