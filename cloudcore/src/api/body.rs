//! Answers: written in one piece, or fed piece by piece while the client reads.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WARNING};
use hyper::{Response, StatusCode};
use proto::value::Value;
use proto::value::json;

use super::media::Encoding;
use super::status::Refusal;
use super::yaml;

/// A future that is somebody else's to name.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What an answer ends with that cannot be told to its end: its client sees that it is not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer was cut off before its end")]
pub struct Cut;

/// A piece of an answer, and what makes the rest.
pub type Fed = Result<(Bytes, Box<dyn Feed>), Cut>;

/// Something that makes the pieces of an answer one by one. It is asked for the next when the client has read the last,
/// so that a slow client slows only itself.
pub trait Feed: Send {
    /// The next piece and what makes the rest; `None` at the end.
    fn next(self: Box<Self>) -> BoxFuture<'static, Option<Fed>>;
}

/// The body of an answer.
pub enum Answer {
    Whole(Option<Bytes>),
    Fed(BoxFuture<'static, Option<Fed>>),
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole(_) => "Whole",
            Self::Fed(_) => "Fed",
        })
    }
}

impl Answer {
    pub fn fed(feed: Box<dyn Feed>) -> Self {
        Self::Fed(feed.next())
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut *self {
            Self::Whole(piece) => Poll::Ready(piece.take().map(|piece| Ok(Frame::data(piece)))),
            Self::Fed(next) => match std::task::ready!(next.as_mut().poll(context)) {
                None => {
                    *self = Self::Whole(None);
                    Poll::Ready(None)
                }
                Some(Err(cut)) => {
                    *self = Self::Whole(None);
                    Poll::Ready(Some(Err(cut)))
                }
                Some(Ok((piece, feed))) => {
                    *self = Self::fed(feed);
                    Poll::Ready(Some(Ok(Frame::data(piece))))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(piece) => {
                let bytes = piece.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
            Self::Fed(_) => SizeHint::default(),
        }
    }
}

/// An answer with these bytes.
pub fn bytes(code: StatusCode, content_type: &'static str, bytes: impl Into<Bytes>) -> Response<Answer> {
    let bytes = bytes.into();
    let mut response = Response::new(Answer::Whole((!bytes.is_empty()).then_some(bytes)));
    *response.status_mut() = code;
    header(&mut response, CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An answer of plain text, as the real server sends it.
pub fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<Answer> {
    let mut response = bytes(code, "text/plain; charset=utf-8", text);
    let nosniff = HeaderName::from_static("x-content-type-options");
    header(&mut response, nosniff, HeaderValue::from_static("nosniff"));
    response
}

/// An answer with an object, and what there is to warn of.
pub fn object(code: StatusCode, encoding: Encoding, value: &Value, warnings: &[String]) -> Response<Answer> {
    let written = match encoding {
        Encoding::Json => json::write(value) + "\n",
        Encoding::Yaml => yaml::write(value),
    };
    let mut response = bytes(code, encoding.content_type(), written);
    for warning in warnings {
        let quoted = format!("299 - {}", quote(warning));
        if let Ok(value) = HeaderValue::from_str(&quoted) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

/// The answer to a refused request.
pub fn refusal(refusal: &Refusal) -> Response<Answer> {
    let mut response = if refusal.plain {
        text(refusal.code, refusal.message.clone())
    } else {
        object(refusal.code, Encoding::Json, &refusal.status(), &[])
    };
    if let Some(seconds) = refusal.retry_after {
        header(&mut response, RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

pub(super) fn header(response: &mut Response<Answer>, name: HeaderName, value: HeaderValue) {
    response.headers_mut().insert(name, value);
}

/// A quoted string of a header: quotes and backslashes escaped, control characters left out.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars().filter(|character| !character.is_control()) {
        if matches!(character, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted.push('"');
    quoted
}
