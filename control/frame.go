package control

// FrameType is the type of a frame on the socket.
type FrameType uint16

// The frames. R marks those that the daemon answers, with the type behind the arrow or with ERROR.
const (
	TypeHello      FrameType = iota + 1 // R -> WELCOME; the first frame of a connection
	TypeWelcome                         //
	TypeRedeem                          // R -> FDS: descriptors for a ticket
	TypeFDs                             //
	TypeAck                             // FDS or FILES has arrived, with this many descriptors
	TypeRelease                         // these objects are no longer in use
	TypeLookup                          // R -> FILES: extents of many files, and descriptors
	TypeFiles                           //
	TypeName                            // R -> NAMES: the names of objects at the source
	TypeNames                           //
	TypeStats                           // how much the client moved, by path and reason
	TypePrefetch                        // R -> DONE: ranges of leased objects will be read
	TypeDone                            //
	TypeReaders                         // R -> COUNT: how many readers are connected
	TypeCount                           //
	TypeError                           // the frame with this id was refused
	TypeBegin                           // R -> DRAFT: a draft of a checkpoint, and descriptors of its files
	TypeAdd                             // R -> DRAFT: more files
	TypeDraft                           //
	TypeSeal                            // R -> DONE: checksums of a file
	TypePublish                         // R -> DONE: the draft becomes the checkpoint
	TypeDrop                            // R -> DONE: the draft is removed
	TypeKVOpen                          // R -> KV_SPACE: a namespace of a KV volume, and descriptors of its tiers
	TypeKVSpace                         //
	TypeKVLookup                        // R -> KV_SLOTS: where the blocks of keys lie
	TypeKVSlots                         //
	TypeKVReserve                       // R -> KV_SLOTS: where blocks shall lie
	TypeKVCommit                        // R -> KV_DONE: these blocks are written
	TypeKVDone                          //
	TypeKVRelease                       // R -> KV_DONE: pins end, reservations are given up
	TypeKVRemove                        // R -> KV_DONE: blocks are removed
	TypeKVStat                          // R -> KV_COUNTS
	TypeKVCounts                        //
	TypeKVAttach                        // R -> DONE: the pins and reservations of another connection of the process
	TypeKVVerify                        // R -> KV_VERIFIED: blocks are compared with their checksums
	TypeKVVerified                      //
	TypeRecord                          // R -> TOUCHES: the first reads, in order
	TypeTouches                         //
	TypeBring                           // R -> BROUGHT: segments that others have read are to come, or how much of them is here
	TypeBrought                         //
	TypeChanges                         // R -> CHANGED: which files of the source have changed, and a counter of changes
	TypeChanged                         //
)

// Sizes and limits of frames, bytes.
const (
	HeaderSize = 16
	MaxFrame   = 64 << 10 // header and payload
	MaxPayload = MaxFrame - HeaderSize

	magic = 'H' | 'B'<<8 | 'M'<<16 | 'F'<<24
)

// Header begins every frame. One frame is one message of the SOCK_SEQPACKET socket.
type Header struct {
	Version uint16 // of the connection; 1 in HELLO, for any range that it offers
	Type    FrameType
	ID      uint32 // the client's choice; an answer has its request's
}

// AppendFrame appends a frame with the payload that fill appends.
func AppendFrame(b []byte, h Header, fill func([]byte) []byte) []byte {
	start := len(b)
	b = put32(b, magic, uint32(h.Version)|uint32(h.Type)<<16, h.ID, 0)
	if fill != nil {
		b = fill(b)
	}
	put32(b[:start+12], uint32(len(b)-start-HeaderSize))
	return b
}

// ParseFrame takes one message apart. The payload is part of p.
func ParseFrame(p []byte) (h Header, payload []byte, err error) {
	r := reader{rest: p}
	r.bad = len(p) > MaxFrame || r.u32() != magic
	h = Header{r.u16(), FrameType(r.u16()), r.u32()}
	n := r.u32()
	if int64(n) != int64(len(r.rest)) {
		r.bad = true
	}
	payload, r.rest = r.rest, nil
	return h, payload, r.end()
}
