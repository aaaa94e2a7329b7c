//! What the gate itself asks of the server, on a connection of its own: which commands there are, where the keys of one
//! stand that its table can't tell, and to wake a client that waits in one.
//!
//! One for each core. It is opened when it is needed first, and what it knows ends with it: a server that was started
//! anew may have other commands.

use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::tables;
use crate::base::Buf;
use crate::config::Credentials;
use crate::keeper::Flight;
use crate::rules::redis::Table;
use crate::upstream::{Amiss, Backend, Conn, NoConn, Pool, Sent, Slots};
use crate::wire::resp::{Replies, Value, write_command};

/// Asks one server.
#[derive(Debug)]
pub struct Asker {
    pool: Pool,
    credentials: Option<Credentials>,
    patience: Duration,
    side: Mutex<Option<Side>>,
}

/// A connection that has been let in, and what the server said on it.
#[derive(Debug)]
struct Side {
    conn: Conn,
    table: Arc<Table>,
    read_at: Instant,
}

/// Why the server could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum Unasked {
    /// It can't be connected.
    #[error(transparent)]
    NoConn(#[from] NoConn),
    /// It has not answered; it may be at another client's slow command.
    #[error("the backend has not answered the gate's own question within {0:?}")]
    Late(Duration),
    /// The connection broke, or what came was no answer.
    #[error("asking the backend failed: {0}")]
    Broken(#[from] io::Error),
    /// What it says is no answer of a Redis server's.
    #[error("the backend's answer to {what} is not one of a Redis server")]
    NoServer {
        /// What was asked.
        what: &'static str,
    },
    /// It refuses to tell.
    #[error("the backend refuses {what}: {text}{advice}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// What it said.
        text: String,
        /// What would help, where that is known.
        advice: &'static str,
    },
}

impl Unasked {
    /// What is wrong with the server, for whoever configures it.
    pub fn into_amiss(self, secured: bool) -> Amiss {
        let advice = match self {
            Unasked::NoConn(NoConn::Unreachable(error)) => return Amiss::unreachable(error, secured),
            Unasked::Broken(_) | Unasked::NoServer { .. } => {
                "; upstream.url has to lead to a Redis server, and one that wants TLS needs upstream.tls"
            }
            Unasked::Late(_) => "; does upstream.url lead to a Redis server? One that is busy is waited for",
            Unasked::NoConn(NoConn::Full) | Unasked::Refused { .. } => "",
        };
        Amiss {
            problem: self.into(),
            advice,
        }
    }
}

/// The largest answer.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// A command that the table doesn't know may have come since: it is asked for again, but not more often than so.
const FRESH: Duration = Duration::from_secs(1);
/// On an older connection. What is silent for longer may be gone without a word: a new connection tells that from a
/// server that is busy.
const ALIVE_MAX: Duration = Duration::from_secs(5);

impl Asker {
    /// Asks the server behind `backend`, waiting so long for what is asked of it, others' questions before it included.
    #[must_use]
    pub fn new(backend: Backend, credentials: Option<Credentials>, patience: Duration) -> Asker {
        Asker {
            // Its own room: it must not wait for a client's connection to end.
            pool: Pool::new(backend, Slots::new(1)),
            credentials,
            patience,
            side: Mutex::new(None),
        }
    }

    /// The commands of the server that runs now. A server that answers is the one that was connected before the
    /// question: the table is right for every connection that stood then.
    ///
    /// # Errors
    /// [`Unasked`].
    pub async fn table(&self) -> Result<Arc<Table>, Unasked> {
        self.in_time(async {
            let mut held = self.side.lock().await;
            if let Some(mut side) = held.take()
                && is_alive(&mut side.conn).await
            {
                return Ok(Arc::clone(&held.insert(side).table));
            }
            let side = self.open().await?;
            Ok(Arc::clone(&held.insert(side).table))
        })
        .await
    }

    /// The table again, where it wasn't read a moment ago.
    ///
    /// # Errors
    /// [`Unasked`].
    pub async fn table_again(&self) -> Result<Arc<Table>, Unasked> {
        self.in_time(async {
            let mut held = self.side.lock().await;
            let mut side = match held.take() {
                Some(side) if side.read_at.elapsed() < FRESH => side,
                Some(mut side) => {
                    side.table = read_table(&mut side.conn).await?;
                    side.read_at = Instant::now();
                    side
                }
                None => self.open().await?,
            };
            let table = Arc::clone(&side.table);
            side.conn.inbox.clear();
            *held = Some(side);
            Ok(table)
        })
        .await
    }

    /// The keys of a command and whether it may change each; `None` where the server can't tell either.
    ///
    /// # Errors
    /// [`Unasked`].
    pub async fn keys(&self, words: &[&[u8]]) -> Result<Option<Vec<(Vec<u8>, bool)>>, Unasked> {
        let question: Vec<&[u8]> = [&b"COMMAND"[..], b"GETKEYSANDFLAGS"]
            .into_iter()
            .chain(words.iter().copied())
            .collect();
        let Value::List(keys) = self.ask_any(&question).await? else {
            return Ok(None);
        };
        Ok(keys.iter().map(key).collect())
    }

    /// Wakes a client that waits in a command. False where it doesn't wait.
    ///
    /// # Errors
    /// [`Unasked`].
    pub async fn unblock(&self, client: i64) -> Result<bool, Unasked> {
        let id = client.to_string();
        let question: [&[u8]; 4] = [b"CLIENT", b"UNBLOCK", id.as_bytes(), b"ERROR"];
        match self.ask_any(&question).await? {
            Value::Integer(woken) => Ok(woken > 0),
            answer => Err(refused("CLIENT UNBLOCK", &answer)),
        }
    }

    /// Closes what is open.
    pub fn close(&self) {
        if let Ok(mut held) = self.side.try_lock() {
            held.take().into_iter().for_each(|side| side.conn.close());
        }
    }

    async fn ask_any(&self, question: &[&[u8]]) -> Result<Value, Unasked> {
        self.in_time(async {
            let mut held = self.side.lock().await;
            let mut side = match held.take() {
                Some(side) => side,
                None => self.open().await?,
            };
            let answer = exchange(&mut side.conn, question).await?;
            *held = Some(side);
            Ok(answer)
        })
        .await
    }

    /// Who gives up waiting has taken the connection out of its place and drops it: the next one would get this answer.
    async fn in_time<T>(&self, question: impl Future<Output = Result<T, Unasked>>) -> Result<T, Unasked> {
        let answered = tokio::time::timeout(self.patience, question).await;
        answered.unwrap_or(Err(Unasked::Late(self.patience)))
    }

    async fn open(&self) -> Result<Side, Unasked> {
        let mut conn = self.pool.connect(self.patience).await?;
        if let Some(Credentials { username, password }) = &self.credentials {
            let user = username.as_deref().unwrap_or("default");
            let question: [&[u8]; 3] = [b"AUTH", user.as_bytes(), password.reveal().as_bytes()];
            // Servers before version 6 know no users.
            let words = if username.is_some() {
                &question[..]
            } else {
                &[b"AUTH", question[2]][..]
            };
            let answer = exchange(&mut conn, words).await?;
            if let Value::Error(_) = answer {
                return Err(refused("AUTH", &answer));
            }
        }
        let table = read_table(&mut conn).await?;
        Ok(Side {
            conn,
            table,
            read_at: Instant::now(),
        })
    }
}

/// Whether the server behind an older connection answers on it.
async fn is_alive(conn: &mut Conn) -> bool {
    matches!(
        tokio::time::timeout(ALIVE_MAX, exchange(conn, &[b"PING"])).await,
        Ok(Ok(_))
    )
}

async fn read_table(conn: &mut Conn) -> Result<Arc<Table>, Unasked> {
    let answer = exchange(conn, &[b"COMMAND"]).await?;
    let table = tables::read(&answer).ok_or_else(|| refused("COMMAND", &answer))?;
    tracing::debug!(commands = table.len(), "the backend's commands are read");
    Ok(Arc::new(table))
}

async fn exchange(conn: &mut Conn, words: &[&[u8]]) -> io::Result<Value> {
    let mut outbox = Buf::default();
    write_command(outbox.end(), words.iter().copied());
    // It changes nothing that is fenced.
    let mut flight = Flight::unfenced();
    loop {
        match conn.send(&mut flight, &mut outbox, true, false) {
            Sent::All => break,
            Sent::Part => {}
            Sent::Blocked => poll_fn(|cx| conn.stream().poll_write_ready(cx)).await,
            Sent::Cut(_) => unreachable!("what no fence binds is never cut"),
            Sent::Broken(error) => return Err(error),
        }
    }
    let (mut replies, mut read) = (Replies::default(), 0);
    loop {
        let (taken, ended) = replies
            .read(&conn.inbox.filled()[read..])
            .map_err(io::Error::other)?;
        read += taken;
        if ended {
            let answer = Value::read(&conn.inbox.filled()[..read]).map_err(io::Error::other);
            conn.inbox.consume(read);
            return answer;
        }
        if read > ANSWER_BYTES_MAX {
            return Err(io::Error::other("the answer is too large"));
        }
        conn.inbox.end().reserve(read);
        match conn.read() {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|cx| conn.stream().poll_read_ready(cx)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A key and its flags; what isn't said to be looked at only may be changed.
fn key(entry: &Value) -> Option<(Vec<u8>, bool)> {
    let (name, flags) = (entry.list().first()?.text()?, entry.list().get(1)?.list());
    let reads = flags.iter().any(|flag| flag.text() == Some(b"RO"));
    Some((name.to_vec(), !reads))
}

fn refused(what: &'static str, answer: &Value) -> Unasked {
    match answer {
        Value::Error(text) => Unasked::Refused {
            what,
            text: String::from_utf8_lossy(text).chars().take(200).collect(),
            advice: match [&b"NOAUTH"[..], b"NOPERM", b"WRONGPASS"]
                .iter()
                .any(|word| text.starts_with(word))
            {
                true => "; give upstream a username and a password_file of a user who may ask",
                false => "",
            },
        },
        Value::Text(_) | Value::Integer(_) | Value::List(_) | Value::Null => Unasked::NoServer { what },
    }
}
