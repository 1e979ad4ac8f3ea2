use std::sync::Arc;

use ondol_plugin::Key;
use ondol_protocol::{Commit, CommitOutcome, DeleteOutcome, Grant, ObjectMeta};
use smallvec::SmallVec;

use super::{BatchStored, Handler, Stored, short_answer};
use crate::line::Line;
use crate::{HandlerError, PageMut, PageSizes};

/// What a single store needs is not put on the heap.
type Few<T> = SmallVec<[T; 1]>;

/// An object that is to be made visible.
type Written = (Key, PageMut, ObjectMeta);

/// What became of it.
type Outcome = Result<Stored, HandlerError>;

/// What changes the engine's state.
impl Handler {
    /// A page of shared memory for an object of `len` bytes, of the size that [`HandlerConfig::page_sizes`](crate::HandlerConfig::page_sizes) gives.
    ///
    /// # Errors
    /// [`HandlerError::TooLong`], or [`ControlError::PoolFull`](crate::ControlError::PoolFull) with a breakdown if nothing can be freed.
    pub fn alloc(&self, len: usize) -> Result<PageMut, HandlerError> {
        let asked = len as u64;
        let longest = match &self.config.page_sizes {
            PageSizes::Fixed(sizes) => sizes.iter().copied().max().unwrap_or(0),
            PageSizes::Fitted => self.line()?.info.max_page_bytes,
        };
        let stride = self
            .config
            .page_sizes
            .stride(asked)
            .filter(|stride| *stride <= longest);
        let stride = stride.or((asked <= longest).then_some(longest));
        self.alloc_in(stride.ok_or(HandlerError::TooLong { asked, longest })?, len)
    }

    /// A page of exactly `page_bytes`, of which the first `len` are the object's.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_in(&self, page_bytes: u64, len: usize) -> Result<PageMut, HandlerError> {
        self.write_on_line(|line| self.alloc_on(line, page_bytes, len))
    }

    fn alloc_on(
        &self,
        line: &Arc<Line>,
        page_bytes: u64,
        len: usize,
    ) -> Result<PageMut, HandlerError> {
        let longest = page_bytes.min(line.info.max_page_bytes);
        if len as u64 > longest || page_bytes > line.info.max_page_bytes {
            return Err(HandlerError::TooLong {
                asked: page_bytes.max(len as u64),
                longest,
            });
        }
        let grant = line.stock.take(&*line.plane, page_bytes)?;
        ondol_catalog::failpoint!("client.alloc");
        let claim = || {
            let region = line.regions.get(&*line.plane, grant.page.region)?;
            Ok::<_, HandlerError>(region.write(&*line.plane)?.claim(grant.page, len as u64)?)
        };
        match claim() {
            Ok(bytes) => Ok(PageMut::new(
                Arc::clone(line),
                bytes,
                grant,
                page_bytes,
                self.config.checksum,
            )),
            Err(error) => {
                line.stock.put(&*line.plane, page_bytes, grant);
                Err(error)
            }
        }
    }

    /// Makes an object visible, with the handler's layout and, if so configured, a checksum.
    ///
    /// # Errors
    /// [`HandlerError`]; if [its outcome is unknown](HandlerError::is_outcome_unknown) the store can be repeated, with
    /// a page that is written anew. [`HandlerError::ForeignPage`] if the page is of another connection.
    pub fn store(&self, key: &Key, page: PageMut) -> Result<Stored, HandlerError> {
        let meta = self.describe(&page);
        self.store_with(key, page, meta)
    }

    /// Makes an object visible under this description of it.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn store_with(
        &self,
        key: &Key,
        page: PageMut,
        meta: ObjectMeta,
    ) -> Result<Stored, HandlerError> {
        let object = (key.clone(), page, meta);
        let mut outcomes = self.commit(std::iter::once(object).collect())?;
        let no_outcome = || Err(short_answer("no outcome of a store"));
        outcomes.pop().unwrap_or_else(no_outcome)
    }

    /// Makes many objects visible with one message.
    ///
    /// # Errors
    /// [`HandlerError::LengthMismatch`], or what concerns the whole batch; what concerns one object is in the answer.
    pub fn batch_store(
        &self,
        keys: &[Key],
        pages: Vec<PageMut>,
    ) -> Result<BatchStored, HandlerError> {
        if keys.len() != pages.len() {
            return Err(HandlerError::LengthMismatch {
                keys: keys.len(),
                pages: pages.len(),
            });
        }
        let objects = keys.iter().zip(pages).map(|(key, page)| {
            let meta = self.describe(&page);
            (key.clone(), page, meta)
        });
        Ok(self.commit(objects.collect())?.into_vec())
    }

    fn describe(&self, page: &PageMut) -> ObjectMeta {
        ObjectMeta {
            layout: self.config.layout,
            checksum: self.config.checksum.then(|| page.checksum()),
        }
    }

    fn commit(&self, objects: Few<Written>) -> Result<Few<Outcome>, HandlerError> {
        let (line, result) = self.write_once(|line| self.commit_on(line, objects))?;
        match result {
            // Nothing was stored, and these pages are not this handler's any more: they have to be written again, on
            // the next line. If that cannot be opened now, the next call tries again.
            Err(error) if error.is_unknown_client() => {
                let _ = self.replace(&line, &error);
                Err(HandlerError::ForeignPage)
            }
            result => result,
        }
    }

    fn commit_on(
        &self,
        line: &Arc<Line>,
        objects: Few<Written>,
    ) -> Result<Few<Outcome>, HandlerError> {
        if objects
            .iter()
            .any(|(_, page, _)| !Arc::ptr_eq(page.line(), line))
        {
            return Err(HandlerError::ForeignPage);
        }
        ondol_catalog::failpoint!("client.write");
        let mut commits: Few<Commit> = SmallVec::with_capacity(objects.len());
        let mut pages: Few<(u64, Grant)> = SmallVec::with_capacity(objects.len());
        for (key, page, meta) in objects {
            let stride = page.stride();
            let (location, grant) = page.into_commit();
            commits.push(Commit {
                key,
                location,
                meta,
            });
            pages.push((stride, grant));
        }
        ondol_catalog::failpoint!("client.store.before");
        let answer = line.plane.commit(&commits);
        ondol_catalog::failpoint!("client.store.answered");
        let outcomes = match answer {
            Ok(outcomes) if outcomes.len() == pages.len() => outcomes,
            result => {
                // Whether these pages are committed only the engine knows; none is written again before it says so.
                pages
                    .into_iter()
                    .for_each(|(_, grant)| line.stock.leave_unsettled(grant));
                return Err(match result {
                    Ok(outcomes) => short_answer(&format!(
                        "{} outcomes of {} stores",
                        outcomes.len(),
                        commits.len()
                    )),
                    Err(error) => error.into(),
                });
            }
        };
        let settle = |(outcome, (stride, grant))| match outcome {
            CommitOutcome::Stored => {
                self.counters.stores.increment();
                Ok(Stored::New)
            }
            CommitOutcome::AlreadyPresent => {
                line.stock.put(&*line.plane, stride, grant);
                Ok(Stored::AlreadyPresent)
            }
            CommitOutcome::Refused(reason) => {
                line.stock.leave_unsettled(grant);
                Err(reason.into())
            }
        };
        Ok(outcomes.into_iter().zip(pages).map(settle).collect())
    }

    /// Removes an object for every later reader; those that hold it keep it.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn delete(&self, key: &Key) -> Result<DeleteOutcome, HandlerError> {
        let outcomes = self.batch_delete(std::slice::from_ref(key))?;
        outcomes
            .first()
            .copied()
            .ok_or_else(|| short_answer("no outcome of a delete"))
    }

    /// Removes objects; one answer for each key, in order.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn batch_delete(&self, keys: &[Key]) -> Result<Vec<DeleteOutcome>, HandlerError> {
        self.write_on_line(|line| Ok(line.plane.delete(keys)?))
    }
}
