//! What a client's certificate says of it, once the listener has verified it.

/// A verified certificate's names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientCert {
    /// The subject's common name; `None` where it has none, or more than one.
    pub common_name: Option<String>,
    /// The subject's alternative names that are DNS names.
    pub dns_names: Vec<String>,
    /// Those that are URIs, as a SPIFFE ID.
    pub uris: Vec<String>,
}
