use std::os::fd::OwnedFd;

use ondol_protocol::wire::{Answer, MAX_BATCH, Request};
use ondol_protocol::{ControlError, ControlPlane, GrantRequest, IndexFiles};

/// The most objects that are asked of the engine for one listing: about as many as a frame holds with the longest
/// keys.
const LIST_LIMIT: u32 = 16_384;

/// Carries out a request; descriptors that come out travel with the answer, in this order.
pub(super) fn carry_out(
    session: &dyn ControlPlane,
    request: Request,
) -> Result<(Answer, Vec<OwnedFd>), ControlError> {
    let answer = match request {
        Request::Hello(_) => {
            return Err(ControlError::Protocol(
                "hello was said before on this connection".to_owned(),
            ));
        }
        Request::Regions { after } => {
            let mut regions = session.regions()?;
            regions.retain(|region| region.handle.span.region_id.0 > after);
            regions.sort_unstable_by_key(|region| region.handle.span.region_id);
            Answer::Regions {
                regions,
                more: false,
            }
        }
        Request::OpenBacking { handle, access } => {
            let file = session.open_backing(&handle, access)?;
            return Ok((Answer::OpenBacking, vec![file]));
        }
        Request::Grant(request) => Answer::Grant(session.grant(GrantRequest {
            count: request.count.min(MAX_BATCH as u32),
            ..request
        })?),
        Request::ReturnPages(pages) => Answer::ReturnPages(session.return_pages(&pages)?),
        Request::Commit(commits) => Answer::Commit(session.commit(&commits)?),
        Request::Retrieve(request) => Answer::Retrieve(session.retrieve(&request)?),
        Request::Prefetch(request) => Answer::Prefetch(session.prefetch(&request)?),
        Request::Locate(keys) => Answer::Locate(session.locate(&keys)?),
        Request::Pin(keys) => Answer::Pin(session.pin(&keys)?),
        Request::Unpin(keys) => Answer::Unpin(session.unpin(&keys)?),
        Request::Delete(keys) => Answer::Delete(session.delete(&keys)?),
        Request::List { after, limit } => {
            Answer::List(session.list(after.as_ref(), limit.min(LIST_LIMIT))?)
        }
        Request::Stats => Answer::Stats(Box::new(session.stats()?)),
        Request::Ping => {
            session.ping()?;
            Answer::Ping
        }
        Request::Leave => {
            session.leave()?;
            Answer::Leave
        }
        Request::Index => match session.index()? {
            Some(IndexFiles { index, slots }) => return Ok((Answer::Index, vec![index, slots])),
            None => Answer::NoIndex,
        },
    };
    Ok((answer, Vec::new()))
}
