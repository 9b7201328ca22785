"""Frames of port 5567, after the ROUTER's identity: ``[0x01][type byte + protobuf]``. Pure.

Other ports give other meanings to the same type bytes; this table is 5567's alone (docs/protocol.md).
"""

from __future__ import annotations

from services.common.messaging.frames import VERSION as VERSION
from services.common.messaging.frames import BadFrame as BadFrame
from services.common.messaging.frames import FrameCodec
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb

Frame = pb.WorkerReady | pb.WorkComplete | pb.WorkHeartbeat | pb.WorkReject | pb.DataRequest | pb.WorkStop

TYPES: dict[int, type[Frame]] = {
    0x20: pb.WorkerReady,  # ingestor -> relay
    0x21: pb.WorkComplete,  # ingestor -> relay
    0x22: pb.WorkHeartbeat,  # ingestor -> relay
    0x23: pb.WorkReject,  # ingestor -> relay
    0x24: pb.DataRequest,  # relay -> ingestor
    0x25: pb.WorkStop,  # relay -> ingestor
}
FROM_INGESTOR = (pb.WorkerReady, pb.WorkComplete, pb.WorkHeartbeat, pb.WorkReject)
FROM_RELAY = (pb.DataRequest, pb.WorkStop)
_CODEC: FrameCodec[Frame] = FrameCodec(TYPES)

encode = _CODEC.encode
decode = _CODEC.decode
