package control

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// Touched is a file of a remote source whose bytes somebody has read, at the version that the mount shows.
type Touched struct {
	Name    string // relative to the root of the mount
	Version string
	Size    int64
}

// Touch is bytes that were first read together: a cache brings them as one.
type Touch struct {
	Object uint32 // its place among the files
	Range
}

// Touches are some of a record's, and the files that they are of.
type Touches struct {
	Objects []Touched
	Touches []Touch // in the order of their first reads
}

const (
	touchedSize = 16
	touchSize   = 24
)

// Room tells whether a touch of a file still fits into one frame. fresh says that the file is not in it yet.
func (m *Touches) Room(o *Touched, fresh bool) bool {
	const fields = 64 // of the largest message around them
	size := fields + 8 + (len(m.Touches)+1)*touchSize
	for i := range m.Objects {
		size += touchedSize + len(m.Objects[i].Name) + len(m.Objects[i].Version)
	}
	if fresh {
		size += touchedSize + len(o.Name) + len(o.Version)
	}
	return size <= MaxPayload
}

func (m *Touches) appendTo(b []byte) []byte {
	b = put32(b, uint32(len(m.Objects)), uint32(len(m.Touches)))
	for i := range m.Objects {
		o := &m.Objects[i]
		b = put32(put64(b, uint64(o.Size)), uint32(len(o.Name)), uint32(len(o.Version)))
	}
	for _, t := range m.Touches {
		b = put64(put32(b, t.Object, 0), uint64(t.Offset), uint64(t.Length))
	}
	for i := range m.Objects {
		b = append(append(b, m.Objects[i].Name...), m.Objects[i].Version...)
	}
	return b
}

func (r *reader) touches() (m Touches) {
	objects, touches := int64(r.u32()), int64(r.u32())
	if objects*touchedSize+touches*touchSize > int64(len(r.rest)) {
		r.bad = true
		return m
	}
	table := reader{rest: r.bytes(int(objects) * touchedSize)}
	m.Touches = make([]Touch, touches)
	for i := range m.Touches {
		t := &m.Touches[i]
		t.Object = r.u32()
		r.zero(4)
		t.Offset, t.Length = r.i64(), r.i64()
	}
	m.Objects = make([]Touched, objects)
	for i := range m.Objects {
		o := &m.Objects[i]
		o.Size = table.i64()
		name, version := table.u32(), table.u32()
		o.Name, o.Version = string(r.bytes(int(name))), string(r.bytes(int(version)))
	}
	for _, t := range m.Touches {
		r.bad = r.bad || int64(t.Object) >= objects || t.Length <= 0 || t.Offset > m.Objects[t.Object].Size-t.Length
	}
	r.bad = r.bad || table.bad
	return m
}

// RecordFlags say which record RECORD is about.
type RecordFlags uint32

// RecordBegin begins a record of the connection's own, instead of an earlier one. RecordOwn asks for that. Without either, the record is
// the one that began with the mount's daemon.
const (
	RecordBegin RecordFlags = 1 << iota
	RecordOwn
)

// AskRecord asks for touches of a record from one on.
type AskRecord struct {
	Flags RecordFlags
	From  uint32
}

// AppendTo appends the payload.
func (m *AskRecord) AppendTo(b []byte) []byte { return put32(b, uint32(m.Flags), m.From) }

// ParseAskRecord reads the payload.
func ParseAskRecord(p []byte) (AskRecord, error) {
	r := reader{rest: p}
	m := AskRecord{RecordFlags(r.u32()), r.u32()}
	r.bad = r.bad || m.Flags > RecordOwn
	return m, r.end()
}

// RecordPart answers [AskRecord].
type RecordPart struct {
	Since   time.Time
	Next    uint32 // the touch after these, for the next request
	Total   uint32 // of the record
	Full    bool   // there were more than a record may have
	Touches        // those of files that the peer may read
}

// AppendTo appends the payload.
func (m *RecordPart) AppendTo(b []byte) []byte {
	full := uint32(0)
	if m.Full {
		full = 1
	}
	return m.appendTo(put32(put64(b, uint64(m.Since.UnixNano())), m.Next, m.Total, full, 0))
}

// ParseRecordPart reads the payload.
func ParseRecordPart(p []byte) (RecordPart, error) {
	r := reader{rest: p}
	m := RecordPart{Since: time.Unix(0, r.i64()), Next: r.u32(), Total: r.u32()}
	full := r.u32()
	m.Full = full == 1
	r.bad = r.bad || full > 1 || m.Next > m.Total
	r.zero(4)
	m.Touches = r.touches()
	return m, r.end()
}

// Bring names the segments to come, or only asks how much of them is here.
type Bring struct {
	Ask bool // nothing is to come
	Touches
}

// AppendTo appends the payload.
func (m *Bring) AppendTo(b []byte) []byte {
	ask := uint32(0)
	if m.Ask {
		ask = 1
	}
	return m.appendTo(put32(b, ask, 0))
}

// ParseBring reads the payload.
func ParseBring(p []byte) (Bring, error) {
	r := reader{rest: p}
	ask := r.u32()
	r.bad = r.bad || ask > 1
	r.zero(4)
	m := Bring{Ask: ask == 1, Touches: r.touches()}
	return m, r.end()
}

// Brought answers [Bring].
type Brought struct {
	Bytes    int64           // of the files that can come
	Here     int64           // bytes of these that are on this machine
	Settling int64           // bytes of these that are not synced yet, of segments that are complete
	Limit    int64           // bytes that the cache may keep
	Errnos   []syscall.Errno // of each file: ENOENT, ESTALE for another version, EACCES, EOPNOTSUPP for one that no cache keeps; 0: it can come
}

// AppendTo appends the payload.
func (m *Brought) AppendTo(b []byte) []byte {
	b = put32(put64(b, uint64(m.Bytes), uint64(m.Here), uint64(m.Settling), uint64(m.Limit)), uint32(len(m.Errnos)), 0)
	for _, e := range m.Errnos {
		b = put32(b, uint32(e))
	}
	return b
}

// ParseBrought reads the payload.
func ParseBrought(p []byte) (Brought, error) {
	r := reader{rest: p}
	m := Brought{Bytes: r.i64(), Here: r.i64(), Settling: r.i64(), Limit: r.i64()}
	n := r.count(4, MaxPayload/4)
	r.zero(4)
	for range n {
		m.Errnos = append(m.Errnos, syscall.Errno(r.u32()))
	}
	r.bad = r.bad || m.Here > m.Bytes || m.Settling > m.Here
	return m, r.end()
}

// Record asks for a part of a record. EOPNOTSUPP: the mount has no cache.
func (c *Client) Record(ctx context.Context, q AskRecord) (RecordPart, error) {
	a, err := c.ask(ctx, TypeRecord, TypeTouches, q.AppendTo)
	if err != nil {
		return RecordPart{}, fmt.Errorf("ask what was read: %w", err)
	}
	m, err := ParseRecordPart(a.payload)
	if err != nil {
		return m, fmt.Errorf("ask what was read: %w", err)
	}
	return m, nil
}

// Bring has bytes come that others have read, in order, as a plan of the connection: see [Client.Prefetch]. EAGAIN: the plan has no room
// for them.
func (c *Client) Bring(ctx context.Context, q *Bring) (Brought, error) {
	a, err := c.ask(ctx, TypeBring, TypeBrought, q.AppendTo)
	if err != nil {
		return Brought{}, fmt.Errorf("ask for bytes: %w", err)
	}
	m, err := ParseBrought(a.payload)
	if err == nil && len(m.Errnos) != len(q.Objects) {
		err = errMalformed
	}
	if err != nil {
		return m, fmt.Errorf("ask for bytes: %w", err)
	}
	return m, nil
}
