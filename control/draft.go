package control

// DraftSize is the size of the struct of DRAFT, bytes.
const DraftSize = 1024

// OpDraft is the ioctl on the directory of a draft, in the root of a checkpoint volume: it publishes the draft, and tells how far
// that is.
const OpDraft Op = 0xB8

// DraftCommand is the ioctl command of DRAFT.
const DraftCommand uint32 = iocRead | iocWrite | DraftSize<<16 | iocType | uint32(OpDraft)

// DraftVerb is the verb of DRAFT.
type DraftVerb uint32

// The verbs.
const (
	DraftPoll   DraftVerb = iota // tell how far it is
	DraftStart                   // begin to publish, in the background
	DraftCancel                  // stop that: the draft stays as it was
)

// DraftState is how far a draft is.
type DraftState uint32

// The states.
const (
	DraftOpen DraftState = iota
	DraftSealing
	DraftPublished
	DraftFailed // the last attempt to publish it has; Text says why
)

// DraftReply is the answer to DRAFT.
type DraftReply struct {
	State       DraftState
	Errno       uint32
	Done, Total int64  // bytes that were read for their sums
	Text        string // at most [DraftSize] - 40 bytes
}

const draftText = DraftSize - 40

// AppendDraftRequest appends the struct as it goes into the ioctl.
func AppendDraftRequest(b []byte, verb DraftVerb) []byte {
	return pad(put32(b, Version, uint32(verb)), DraftSize-8)
}

// ParseDraftRequest reads the struct that went into the ioctl.
func ParseDraftRequest(p []byte) (DraftVerb, error) {
	r := reader{rest: p}
	r.bad = r.u32() != Version
	verb := DraftVerb(r.u32())
	r.zero(DraftSize - 8)
	r.bad = r.bad || verb > DraftCancel
	return verb, r.end()
}

// AppendTo appends the struct as it comes out of the ioctl.
func (d *DraftReply) AppendTo(b []byte) []byte {
	text := d.Text[:min(len(d.Text), draftText)]
	b = put32(b, Version, uint32(d.State), d.Errno, uint32(len(text)))
	b = put64(b, uint64(d.Done), uint64(d.Total), 0)
	return pad(append(b, text...), draftText-len(text))
}

// ParseDraftReply reads the struct that came out of the ioctl.
func ParseDraftReply(p []byte) (DraftReply, error) {
	r := reader{rest: p}
	r.bad = r.u32() != Version
	d := DraftReply{State: DraftState(r.u32()), Errno: r.u32()}
	n := int(r.u32())
	d.Done, d.Total = r.i64(), r.i64()
	r.zero(8)
	if n > draftText || d.State > DraftFailed {
		r.bad, n = true, 0
	}
	d.Text = string(r.bytes(n))
	r.zero(draftText - n)
	return d, r.end()
}
