// SPDX-License-Identifier: Apache-2.0
//! Reading what is in one place. The kernel's list of queueing disciplines is of all links at once,
//! so that each is asked for by itself.

use ::netlink::{Attrs, Errno, Message, u32_at};

use super::filter::{self, Filter};
use super::{
    HEADER_LEN, Handle, Header, RTM_GETQDISC, RTM_GETTCLASS, RTM_GETTFILTER, TCA_HTB_INIT,
    TCA_HTB_PARMS, TCA_HTB_RATE64, TCA_KIND, TCA_OPTIONS, TCA_TBF_PARMS, TCA_TBF_RATE64,
};
use crate::error::{Error, Result};
use crate::request::Netlink;
use crate::types::IfIndex;

/// Without it the kernel tells everybody but who asked (`linux/netlink.h`).
const NLM_F_ECHO: u16 = 0x08;
/// Without it nobody is told of a place that is empty but not missing (`linux/netlink.h`).
const NLM_F_ACK: u16 = 0x04;

/// A queueing discipline as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundQdisc {
    /// `tbf`, `noqueue`, …
    pub kind: String,
    /// Its name; 0 where nobody gave one.
    pub handle: Handle,
    /// A `tbf`'s bucket.
    pub bucket: Option<FoundBucket>,
    /// How many bytes a `tbf` or `bfifo` queues.
    pub limit: Option<u32>,
    /// The minor number of an `htb`'s default class.
    pub default: Option<u32>,
}

/// A token bucket as found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundBucket {
    /// Bytes in a second.
    pub rate: u64,
    /// The time it takes to fill, in ticks; what does not fit into 32 bits is cut off.
    pub ticks: u32,
}

/// What is in a place of a link: at its root, at its ingress, or in a class.
pub fn qdisc_at(nl: &Netlink, link: IfIndex, parent: Handle) -> Result<Option<FoundQdisc>> {
    let message = Header::new(link, Handle(0), parent).start(RTM_GETQDISC, NLM_F_ECHO | NLM_F_ACK);
    get(nl, &message, "find qdisc", link, parent)?.map_or(Ok(None), |bytes| Ok(qdisc(&bytes)))
}

/// The bucket of an `htb` class.
pub fn class_by_handle(nl: &Netlink, link: IfIndex, class: Handle) -> Result<Option<FoundBucket>> {
    let message = Header::new(link, class, Handle(0)).start(RTM_GETTCLASS, NLM_F_ECHO | NLM_F_ACK);
    get(nl, &message, "find class", link, class)?.map_or(Ok(None), |bytes| Ok(htb_class(&bytes)))
}

/// The filters in a place, those of a kind that we make. None where the place is missing.
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
    place: Handle,
) -> Result<Option<Vec<u8>>> {
    match nl.socket().get(message) {
        Ok((_, payload)) => Ok(Some(payload)),
        // By kernel and place: missing, or the kernel's own that it does not show.
        Err(cause) if matches!(cause.errno, Errno::NOENT | Errno::INVAL | Errno::NODATA) => {
            Ok(None)
        }
        Err(cause) => Err(Error::new(op, format!("of {link} at {place}"), cause)),
    }
}

fn qdisc(payload: &[u8]) -> Option<FoundQdisc> {
    let header = Header::parse(payload)?;
    let attrs = Attrs::after(payload, HEADER_LEN);
    let kind = attrs.find_kind(TCA_KIND)?.str()?.to_owned();
    let mut found =
        FoundQdisc { kind, handle: header.handle, bucket: None, limit: None, default: None };
    let Some(options) = attrs.find_kind(TCA_OPTIONS) else { return Some(found) };
    match found.kind.as_str() {
        "tbf" => {
            let parms = options.nested().find_kind(TCA_TBF_PARMS)?.payload;
            found.limit = u32_at(parms, 24);
            found.bucket = bucket(parms, 28, &options.nested(), TCA_TBF_RATE64);
        }
        "htb" => {
            let glob = options.nested().find_kind(TCA_HTB_INIT)?.payload;
            found.default = u32_at(glob, 8);
        }
        "bfifo" => found.limit = u32_at(options.payload, 0),
        _ => {}
    }
    Some(found)
}

fn htb_class(payload: &[u8]) -> Option<FoundBucket> {
    let attrs = Attrs::after(payload, HEADER_LEN);
    let options = attrs.find_kind(TCA_OPTIONS)?.nested();
    bucket(options.find_kind(TCA_HTB_PARMS)?.payload, 24, &options, TCA_HTB_RATE64)
}

/// Each begins with `struct tc_ratespec`; the ticks are elsewhere.
fn bucket(parms: &[u8], ticks_at: usize, options: &Attrs<'_>, rate64: u16) -> Option<FoundBucket> {
    let wide = options.find_kind(rate64).and_then(|rate| rate.u64());
    let rate = wide.unwrap_or(u64::from(u32_at(parms, 8)?));
    Some(FoundBucket { rate, ticks: u32_at(parms, ticks_at)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tc::{Bucket, Qdisc, replace_class, replace_qdisc};

    #[test]
    fn what_is_written_is_read() {
        let read = |made: Qdisc| {
            let made = replace_qdisc(IfIndex(7), Handle::ROOT, Handle::new(1, 0), &made);
            qdisc(&made.message.to_bytes()[16..]).unwrap()
        };
        let tbf = read(Qdisc::Tbf(Bucket { rate: 1 << 33, burst: 1 << 30 }, 99));
        assert_eq!(
            (tbf.kind.as_str(), tbf.handle, tbf.limit),
            ("tbf", Handle::new(1, 0), Some(99))
        );
        assert_eq!(tbf.bucket, Some(FoundBucket { rate: 1 << 33, ticks: 1_953_125 }));
        assert_eq!(read(Qdisc::Htb(7)).default, Some(7));
        assert_eq!(read(Qdisc::Bfifo(77)).limit, Some(77));
        assert_eq!(read(Qdisc::Ingress).kind, "ingress");
        let bucket = Bucket { rate: 1000, burst: 1000 };
        let class = replace_class(IfIndex(7), Handle::new(2, 0), Handle::new(2, 1), bucket);
        let found = htb_class(&class.message.to_bytes()[16..]);
        assert_eq!(found, Some(FoundBucket { rate: 1000, ticks: 15_625_000 }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(mut bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = (qdisc(&bytes), htb_class(&bytes));
            bytes.resize(HEADER_LEN, 0);
            bytes.extend_from_slice(b"\x08\0\x01\0tbf\0");
            bytes.extend_from_slice(&tail);
            let _ = (qdisc(&bytes), htb_class(&bytes));
        }
    }
}
