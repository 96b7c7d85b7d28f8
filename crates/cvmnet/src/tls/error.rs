//! The ways in which a session ends.

use std::fmt;

/// The description of an alert (RFC 8446, section 6).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Alert(pub u8);

impl Alert {
    /// The sender will send no more data.
    pub const CLOSE_NOTIFY: Alert = Alert(0);
    /// A message came where it may not come.
    pub const UNEXPECTED_MESSAGE: Alert = Alert(10);
    /// A record could not be authenticated.
    pub const BAD_RECORD_MAC: Alert = Alert(20);
    /// A record is longer than a record may be.
    pub const RECORD_OVERFLOW: Alert = Alert(22);
    /// A field has a value that it may not have.
    pub const ILLEGAL_PARAMETER: Alert = Alert(47);
    /// A message has another length than its parts.
    pub const DECODE_ERROR: Alert = Alert(50);
    /// An error of the sender's own.
    pub const INTERNAL_ERROR: Alert = Alert(80);
    /// The user gave up.
    pub const USER_CANCELED: Alert = Alert(90);

    /// Returns the name that RFC 8446 gives it; `None` for others.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "close_notify",
            10 => "unexpected_message",
            20 => "bad_record_mac",
            22 => "record_overflow",
            40 => "handshake_failure",
            42 => "bad_certificate",
            43 => "unsupported_certificate",
            44 => "certificate_revoked",
            45 => "certificate_expired",
            46 => "certificate_unknown",
            47 => "illegal_parameter",
            48 => "unknown_ca",
            49 => "access_denied",
            50 => "decode_error",
            51 => "decrypt_error",
            70 => "protocol_version",
            71 => "insufficient_security",
            80 => "internal_error",
            86 => "inappropriate_fallback",
            90 => "user_canceled",
            109 => "missing_extension",
            110 => "unsupported_extension",
            112 => "unrecognized_name",
            113 => "bad_certificate_status_response",
            115 => "unknown_psk_identity",
            116 => "certificate_required",
            120 => "no_application_protocol",
            _ => return None,
        })
    }
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "alert {}", self.0),
        }
    }
}

impl fmt::Debug for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The reason why a session is over. Nothing can be opened or sealed any more.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The peer broke the protocol, or its records were changed on the way; the alert is queued.
    Peer(Alert),
    /// The handshake failed; an alert is queued where one is due.
    Handshake(rustls::Error),
    /// The peer ended the connection with an alert.
    Alerted(Alert),
    /// The session was over before this call.
    Over,
    /// A call of the user's that the state of the session does not allow, or a buffer of the wrong
    /// size; the session goes on.
    Usage(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Peer(alert) => write!(f, "what the peer sent is not TLS 1.3: {alert}"),
            Error::Handshake(error) => write!(f, "the handshake failed: {error}"),
            Error::Alerted(alert) => write!(f, "the peer ended the connection: {alert}"),
            Error::Over => f.write_str("the session is over"),
            Error::Usage(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Handshake(error) => Some(error),
            _ => None,
        }
    }
}
