// SPDX-License-Identifier: Apache-2.0
//! A directory with its path and an open handle, for reading and setting its modification time.

use std::fs::{self, DirBuilder, File, FileTimes, Metadata, ReadDir};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::error::{Error, doing};

/// A stamp is this many seconds in the past. No change by another program can have the same time,
/// even on file systems with a resolution of one second and kernels that count in timer ticks.
const BACKDATE_SECS: i64 = 10;

#[derive(Debug)]
pub(super) struct Dir {
    path: PathBuf,
    file: File,
}

impl Dir {
    pub(super) fn open(path: PathBuf) -> Result<Self, Error> {
        let file = File::open(&path).map_err(doing("open directory", &path))?;
        Ok(Self { path, file })
    }

    /// Creates the directory with access for its owner only: the names in an index show which
    /// containers exist, which the address files of mode 0600 do not.
    pub(super) fn open_or_create(path: PathBuf) -> Result<Self, Error> {
        // The trailing slash makes the call fail for a file and avoids blocking on a FIFO.
        match File::open(path.join("")) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let created = DirBuilder::new().recursive(true).mode(0o700).create(&path);
                created.map_err(doing("create directory", &path))?;
                Self::open(path)
            }
            Err(e) => Err(doing("open directory", &path)(e)),
            Ok(file) => Ok(Self { path, file }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn entries(&self) -> Result<ReadDir, Error> {
        fs::read_dir(&self.path).map_err(doing("read directory", &self.path))
    }

    /// Whether both directories have the same stamp and have not changed since.
    ///
    /// Equal modification times are not enough: two directories that changed within one timer tick
    /// have them too. But a change sets both mtime and ctime to the present, whereas a stamp sets
    /// only the mtime to the past.
    pub(super) fn is_stamped_like(&self, other: &Self) -> Result<bool, Error> {
        let (ours, theirs) = (self.metadata()?, other.metadata()?);
        let time = |meta: &Metadata| (meta.mtime(), meta.mtime_nsec());
        Ok(time(&ours) == time(&theirs) && ours.ctime() - ours.mtime() > BACKDATE_SECS / 2)
    }

    fn metadata(&self) -> Result<Metadata, Error> {
        self.file.metadata().map_err(doing("look at", &self.path))
    }

    /// Stamps both directories with the same time, which means that they agree.
    pub(super) fn stamp_alike(&self, other: &Self) -> Result<(), Error> {
        let back = Duration::from_secs(BACKDATE_SECS.unsigned_abs());
        let time = SystemTime::now().checked_sub(back).unwrap_or(SystemTime::UNIX_EPOCH);
        self.stamp(time)?;
        other.stamp(time)
    }

    /// Sets a time that no stamp and no change has, so that the directory agrees with no other.
    pub(super) fn unstamp(&self) -> Result<(), Error> {
        self.stamp(SystemTime::UNIX_EPOCH)
    }

    fn stamp(&self, time: SystemTime) -> Result<(), Error> {
        let set = self.file.set_times(FileTimes::new().set_modified(time));
        set.map_err(doing("set time of", &self.path))
    }
}
