//! A real store as a process of its own: the crate s3s-fs serves a folder as S3, without authentication.
//!
//! It knows nothing of tokens, locks or the gate; that is the point. The demo runs the binary again with this
//! verb. It prints one line, `listening ADDRESS`, and serves until it is ended.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use hyper_util::rt::TokioIo;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpListener;

/// Serve a folder as S3 (what `fencegate demo` runs as its store)
#[derive(clap::Args, Debug)]
pub struct StoreArgs {
    /// The folder; each folder in it is a bucket
    #[arg(long)]
    dir: PathBuf,
    /// Where to listen; port 0 lets the system choose
    #[arg(long, default_value = "127.0.0.1:0")]
    bind: SocketAddr,
}

#[derive(Debug, thiserror::Error)]
enum StoreError {
    #[error("can't serve the folder {}: {reason:?}", dir.display())]
    Folder { dir: PathBuf, reason: s3s_fs::Error },
    #[error("can't listen on {bind}: {source}")]
    Listen {
        bind: SocketAddr,
        source: std::io::Error,
    },
}

/// Serves until the process is ended; returns only with an error.
pub fn run(args: StoreArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("fencegate demo-store: can't start a runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let Err(error) = runtime.block_on(serve(args));
    eprintln!("fencegate demo-store: {error}");
    ExitCode::FAILURE
}

async fn serve(args: StoreArgs) -> Result<std::convert::Infallible, StoreError> {
    let folder = s3s_fs::FileSystem::new(&args.dir).map_err(|reason| StoreError::Folder {
        dir: args.dir.clone(),
        reason,
    })?;
    let service = S3ServiceBuilder::new(folder).build();
    let listen_error = |source| StoreError::Listen {
        bind: args.bind,
        source,
    };
    let listener = TcpListener::bind(args.bind).await.map_err(listen_error)?;
    println!("listening {}", listener.local_addr().map_err(listen_error)?);
    loop {
        // An accept that fails is its client's loss: it was gone again, or descriptors are short for the moment.
        match listener.accept().await {
            Ok((stream, _)) => serve_connection(stream, service.clone()),
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

/// The task ends with its connection, or with the process.
fn serve_connection(stream: tokio::net::TcpStream, service: S3Service) {
    tokio::spawn(async move {
        // A client that breaks off in the middle of a body is an error here; the store has dropped the write.
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    });
}
