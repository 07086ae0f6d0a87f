// SPDX-License-Identifier: Apache-2.0
//! The configuration of bandwidth.

use std::time::Duration;

use cni::{Error, Request};
use ipnet::IpNet;
use kernel::tc::Bucket;
use serde::Deserialize;
use serde_json::Value;

/// Default for the time that a packet may wait, as in the Go plugin.
const LATENCY: Duration = Duration::from_millis(25);
const MAX_LATENCY: Duration = Duration::from_secs(60);

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bandwidth {
    /// Limit for packets to the container.
    pub ingress: Option<Limit>,
    /// Limit for packets from the container.
    pub egress: Option<Limit>,
    /// The packets that the limits apply to.
    pub subnets: Subnets,
}

/// A limit in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    pub bucket: Bucket,
    /// Size of the queue in bytes.
    pub queue: u32,
}

/// The packets that a limit applies to, selected by the address of the container's peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subnets {
    All,
    /// All packets except those of these subnets.
    Except(Vec<IpNet>),
    /// Only the packets of these subnets.
    Only(Vec<IpNet>),
}

/// Keys of the network, and of `runtimeConfig.bandwidth`.
#[derive(Debug, Deserialize, Default, Clone)]
#[serde(default, rename_all = "camelCase")]
struct Entry {
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
    latency: Option<Value>,
    unshaped_subnets: Option<Vec<String>>,
    shaped_subnets: Option<Vec<String>>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConf {
    runtime_config: RuntimeKeys,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeKeys {
    bandwidth: Option<Entry>,
}

impl Entry {
    fn has_rates(&self) -> bool {
        let keys = [self.ingress_rate, self.ingress_burst, self.egress_rate, self.egress_burst];
        keys.iter().any(Option::is_some)
    }

    /// Merges the network's configuration with the runtime's. All rates come from the network if it
    /// has any, otherwise from the runtime. The other keys are merged one by one, so that a network
    /// can refine the rates of a runtime.
    fn or(&self, runtime: &Self) -> Self {
        let rates = if self.has_rates() { self } else { runtime };
        let has_subnets = self.unshaped_subnets.is_some() || self.shaped_subnets.is_some();
        let subnets = if has_subnets { self } else { runtime };
        Self {
            unshaped_subnets: subnets.unshaped_subnets.clone(),
            shaped_subnets: subnets.shaped_subnets.clone(),
            latency: self.latency.clone().or_else(|| runtime.latency.clone()),
            ..rates.clone()
        }
    }
}

impl Bandwidth {
    pub(crate) fn parse(request: &Request) -> Result<Self, Error> {
        let network: Entry = request.conf()?;
        let runtime: RuntimeConf = request.conf()?;
        Self::from_entry(&network.or(&runtime.runtime_config.bandwidth.unwrap_or_default()))
    }

    fn from_entry(entry: &Entry) -> Result<Self, Error> {
        let latency = entry.latency.as_ref().map_or(Ok(LATENCY), parse_latency)?;
        let limit = |direction, rate, burst| parse_limit(direction, rate, burst, latency);
        Ok(Self {
            ingress: limit("ingress", entry.ingress_rate, entry.ingress_burst)?,
            egress: limit("egress", entry.egress_rate, entry.egress_burst)?,
            subnets: parse_subnets(entry)?,
        })
    }

    pub(crate) fn limits_nothing(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }
}

impl Limit {
    fn new(bucket: Bucket, latency: Duration) -> Self {
        let latency_bytes = u128::from(bucket.rate) * latency.as_micros() / 1_000_000;
        let queue = latency_bytes + u128::from(bucket.burst);
        Self { bucket, queue: u32::try_from(queue).unwrap_or(u32::MAX) }
    }

    /// An arbitrary limit, for STATUS.
    pub(crate) fn for_probe() -> Self {
        Self::new(Bucket { rate: 1_000_000, burst: 100_000 }, LATENCY)
    }
}

/// Converts bits to bytes. Rate and burst must be set together; 0 means no limit.
fn parse_limit(
    direction: &str,
    rate: Option<u64>,
    burst: Option<u64>,
    latency: Duration,
) -> Result<Option<Limit>, Error> {
    let (rate, burst) = (rate.unwrap_or(0), burst.unwrap_or(0));
    let invalid =
        |msg: &str, details: String| Err(Error::invalid_config(msg).with_details(details));
    match (rate, burst) {
        (0, 0) => return Ok(None),
        (_, 0) => return Err(Error::invalid_config("if rate is set, burst must also be set")),
        (0, _) => return Err(Error::invalid_config("if burst is set, rate must also be set")),
        _ => {}
    }
    if rate < 8 {
        let details = format!("key \"{direction}Rate\" is {rate}, allowed are 8 bits/s and more");
        return invalid(&format!("invalid rate: {rate}"), details);
    }
    match u32::try_from(burst / 8) {
        Ok(bytes) if bytes != 0 && bytes != u32::MAX => {
            Ok(Some(Limit::new(Bucket { rate: rate / 8, burst: bytes }, latency)))
        }
        found => {
            let details = format!(
                "key \"{direction}Burst\" is {burst}, allowed are 8 bits to less than 4 GiB"
            );
            match found {
                Ok(0) => invalid(&format!("invalid burst: {burst}"), details),
                _ => invalid("burst cannot be more than 4GB", details),
            }
        }
    }
}

/// Parses a number of milliseconds, or a text such as `25ms`.
fn parse_latency(value: &Value) -> Result<Duration, Error> {
    let latency = match value {
        Value::Number(number) => number.as_u64().map(Duration::from_millis),
        Value::String(text) => duration(text),
        _ => None,
    };
    latency.filter(|latency| *latency <= MAX_LATENCY).ok_or_else(|| {
        let msg = format!(
            "key \"latency\" is {value}, expected a text such as \"25ms\" or a number of milliseconds, at most 60 s"
        );
        Error::invalid_config(msg)
    })
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    match unit {
        "us" | "µs" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

fn parse_subnets(entry: &Entry) -> Result<Subnets, Error> {
    let parse = |key: &str, list: &Option<Vec<String>>| {
        let texts = list.iter().flatten();
        texts.map(|text| parse_subnet(key, text)).collect::<Result<Vec<IpNet>, Error>>()
    };
    let except = parse("unshapedSubnets", &entry.unshaped_subnets)?;
    let only = parse("shapedSubnets", &entry.shaped_subnets)?;
    match (except.is_empty(), only.is_empty()) {
        (true, true) => Ok(Subnets::All),
        (false, true) => Ok(Subnets::Except(except)),
        (true, false) => Ok(Subnets::Only(only)),
        (false, false) => Err(Error::invalid_config(
            "keys \"unshapedSubnets\" and \"shapedSubnets\" are both set, allowed is one of them",
        )),
    }
}

fn parse_subnet(key: &str, text: &str) -> Result<IpNet, Error> {
    text.parse::<IpNet>().map(|net| net.trunc()).map_err(|_| {
        let msg = format!("key {key:?} has {text:?}, expected a subnet such as \"10.0.0.0/8\"");
        Error::invalid_config(msg)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(network: Value, runtime: Value) -> Result<Bandwidth, String> {
        let read = |value| serde_json::from_value::<Entry>(value).unwrap();
        Bandwidth::from_entry(&read(network).or(&read(runtime))).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn refused(network: Value, words: &str) {
        let msg = parsed(network, json!({})).unwrap_err();
        assert!(msg.contains(words), "{msg}");
    }

    #[test]
    fn rates_are_converted_to_bytes() {
        let found = parsed(json!({"ingressRate": 8000, "ingressBurst": 16000}), json!({}));
        let found = found.unwrap();
        // 25 ms of 1000 bytes/s, and the burst.
        let expected = Limit { bucket: Bucket { rate: 1000, burst: 2000 }, queue: 2025 };
        assert_eq!((found.ingress, found.egress), (Some(expected), None));
        assert_eq!(found.subnets, Subnets::All);
        assert!(parsed(json!({"egressRate": 0}), json!({})).unwrap().limits_nothing());
    }

    #[test]
    fn queue_is_limited_to_32_bits() {
        let rate = 400_000_000_000_u64;
        let found =
            parsed(json!({"egressRate": rate, "egressBurst": 34_000_000_000_u64}), json!({}));
        assert_eq!(found.unwrap().egress.unwrap().queue, u32::MAX);
    }

    #[test]
    fn network_overrides_runtime() {
        let runtime = json!({"egressRate": 800, "egressBurst": 800, "latency": 7,
            "shapedSubnets": ["10.0.0.0/8"]});
        let found = parsed(json!({"ingressRate": 8, "ingressBurst": 8}), runtime.clone());
        let found = found.unwrap();
        assert!(found.ingress.is_some() && found.egress.is_none(), "all rates from the network");
        let more = json!({"latency": "1s", "unshapedSubnets": ["fd00::/8"]});
        let found = parsed(more, runtime).unwrap();
        let bucket = Bucket { rate: 100, burst: 100 };
        assert_eq!(found.egress, Some(Limit { bucket, queue: 200 }), "rates from the runtime");
        assert_eq!(found.subnets, Subnets::Except(vec!["fd00::/8".parse().unwrap()]));
    }

    #[test]
    fn latency_accepts_text_and_milliseconds() {
        let check = |value: Value, expected| {
            assert_eq!(parse_latency(&value).ok(), expected, "{value}");
        };
        check(json!("25ms"), Some(Duration::from_millis(25)));
        check(json!(25), Some(Duration::from_millis(25)));
        check(json!("400us"), Some(Duration::from_micros(400)));
        check(json!("1s"), Some(Duration::from_secs(1)));
        check(json!(0), Some(Duration::ZERO));
        for bad in
            [json!("25"), json!("ms"), json!(-1), json!(1.5), json!("61s"), json!("1h"), json!([])]
        {
            check(bad, None);
        }
    }

    #[test]
    fn invalid_keys_are_named() {
        refused(json!({"ingressRate": 8}), "burst must also be set");
        refused(json!({"egressBurst": 8}), "rate must also be set");
        refused(json!({"egressRate": 7, "egressBurst": 8}), "allowed are 8 bits/s");
        refused(json!({"egressRate": 8, "egressBurst": 7}), "\"egressBurst\" is 7");
        let large = 8 * u64::from(u32::MAX);
        refused(json!({"egressRate": 8, "egressBurst": large}), "less than 4 GiB");
        refused(json!({"latency": "soon"}), "\"latency\" is \"soon\"");
        refused(json!({"shapedSubnets": ["10.0.0.0"]}), "\"10.0.0.0\"");
        let both = json!({"shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": ["10.0.0.0/8"]});
        refused(both, "both set");
    }
}
