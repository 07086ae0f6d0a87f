// SPDX-License-Identifier: Apache-2.0
//! The pages of the API.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};
use serde::Serialize;
use text::escape;

use super::metrics;
use crate::status::StatusHub;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// Error codes of the CNI specification.
const INVALID_CONFIG: u32 = 7;
const TRY_AGAIN: u32 = 11;

/// List of pages, for the root page and unknown paths.
const INDEX: &str = "\
/healthz  200 while the agent works, else 503 with the reasons
/readyz   200 while pods can be attached, else 503 with the reasons
/metrics  metrics for Prometheus
/status   the whole status, as JSON
/peers    the other nodes, as JSON
";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub status: StatusCode,
    pub kind: &'static str,
    pub body: String,
}

/// Returns the response to a request.
pub(super) fn answer(method: &Method, path: &str, hub: &StatusHub) -> Answer {
    if method != Method::GET && method != Method::HEAD {
        let body = format!("{method} is not allowed, use GET or HEAD\n");
        return Answer { status: StatusCode::METHOD_NOT_ALLOWED, kind: TEXT, body };
    }
    match path {
        "/healthz" => healthz(hub),
        "/readyz" => readyz(hub),
        "/metrics" => ok(metrics::KIND, metrics::page(&hub.summary())),
        "/status" => json(&hub.status()),
        "/peers" => json(&hub.peers()),
        "/" => ok(TEXT, INDEX.to_owned()),
        _ => Answer { status: StatusCode::NOT_FOUND, kind: TEXT, body: INDEX.to_owned() },
    }
}

/// Whether a page grows with the number of peers.
pub(super) fn is_large(path: &str) -> bool {
    matches!(path, "/metrics" | "/status" | "/peers")
}

fn healthz(hub: &StatusHub) -> Answer {
    let health = hub.health();
    match health.is_healthy {
        true => ok(TEXT, "healthy\n".to_owned()),
        false => Answer::unavailable(&health.reasons),
    }
}

/// Shows warnings, which do not affect readiness, in both cases.
fn readyz(hub: &StatusHub) -> Answer {
    let readiness = hub.readiness();
    let warnings = readiness.warnings.iter().map(|warning| format!("warning: {warning}"));
    let mut lines = readiness.reasons;
    match readiness.is_ready {
        true => ok(TEXT, text(["ready".to_owned()].into_iter().chain(warnings))),
        false => {
            lines.extend(warnings);
            Answer::unavailable(&lines)
        }
    }
}

fn ok(kind: &'static str, body: String) -> Answer {
    Answer { status: StatusCode::OK, kind, body }
}

/// Formats one line for each text, with control characters escaped.
fn text(lines: impl Iterator<Item = String>) -> String {
    lines.map(|line| format!("{}\n", escape::line(&line.replace(['\r', '\n'], " ")))).collect()
}

fn json(value: &impl Serialize) -> Answer {
    let body = serde_json::to_string(value).expect("string keys and plain values serialize");
    ok(JSON, format!("{}\n", escape::json(&body)))
}

impl Answer {
    /// The response to a request for addresses.
    pub(super) fn of_pools(answer: crate::pools::api::Answer) -> Answer {
        match answer {
            Ok(body) => Answer { status: StatusCode::OK, kind: JSON, body },
            Err(failure) => {
                let status = match failure.code {
                    INVALID_CONFIG => StatusCode::BAD_REQUEST,
                    TRY_AGAIN => StatusCode::SERVICE_UNAVAILABLE,
                    _ => StatusCode::CONFLICT,
                };
                let body = serde_json::to_string(&failure).expect("plain values serialize");
                Answer { status, kind: JSON, body: escape::json(&body).into_owned() }
            }
        }
    }

    /// Status 400.
    pub(super) fn bad_request(reason: &str) -> Answer {
        let body = text([reason.to_owned()].into_iter());
        Answer { status: StatusCode::BAD_REQUEST, kind: TEXT, body }
    }

    /// Status 503 with a line for each reason.
    pub(super) fn unavailable(reasons: &[String]) -> Answer {
        let body = text(reasons.iter().cloned());
        Answer { status: StatusCode::SERVICE_UNAVAILABLE, kind: TEXT, body }
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        response
    }
}
