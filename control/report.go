package control

// PathNumber is a way for bytes of a backing file into memory.
type PathNumber uint32

// The paths, as docs/reference/control-protocol.md numbers them.
const (
	PathDirect PathNumber = iota // storage to GPU by DMA
	PathMapped                   // page cache to GPU by DMA
	PathStaged                   // through a pinned buffer to the GPU
	PathCompat                   // libcufile's POSIX mode
	PathHost                     // into host memory
	Paths                        // how many there are
)

// String returns the name of the path.
func (p PathNumber) String() string {
	if p < Paths {
		return [...]string{"direct", "mapped", "staged", "compat", "host"}[p]
	}
	return "unknown"
}

// PathReport is how much a client moved by one path, for one reason and of one field, since its last report.
type PathReport struct {
	Path   PathNumber
	Reason string // why this path was taken: printable ASCII, at most [ReasonSize] bytes; the same words each time
	Bytes  int64
	Reads  int64
	Field  string // of samples, whose values were read; "" for other bytes: printable ASCII, at most [FieldSize] bytes
}

// Limits of a report.
const (
	ReasonSize = 128 // bytes of a reason
	FieldSize  = 64  // bytes of a field's name
	MaxMoved   = 64  // entries of one STATS
	movedSize  = 24
	// maxMoved bounds one entry: 2^48 bytes are 256 TiB.
	maxMoved = 1 << 48
)

// AppendStats appends the payload of STATS.
func AppendStats(b []byte, moved []PathReport) []byte {
	b = put32(b, uint32(len(moved)), 0)
	for _, m := range moved {
		b = put64(put32(b, uint32(m.Path), uint32(len(m.Reason))|uint32(len(m.Field))<<16), uint64(m.Bytes), uint64(m.Reads))
	}
	for _, m := range moved {
		b = append(append(b, m.Reason...), m.Field...)
	}
	return b
}

// ParseStats reads the payload of STATS.
func ParseStats(p []byte) ([]PathReport, error) {
	r := reader{rest: p}
	n := r.count(movedSize, MaxMoved)
	r.zero(4)
	table := reader{rest: r.bytes(n * movedSize)}
	moved := make([]PathReport, n)
	for i := range moved {
		m := &moved[i]
		m.Path = PathNumber(table.u32())
		reason, field := table.u16(), table.u16()
		m.Bytes, m.Reads = table.i64(), table.i64()
		m.Reason, m.Field = string(r.bytes(int(reason))), string(r.bytes(int(field)))
		r.bad = r.bad || m.Path >= Paths || m.Bytes > maxMoved || m.Reads > maxMoved || reason > ReasonSize || field > FieldSize || !isPrintable(m.Reason+m.Field)
	}
	r.bad = r.bad || table.bad
	return moved, r.end()
}

// ReaderCount answers READERS.
type ReaderCount struct {
	Readers uint32 // that are connected to the daemon, those of other users included
}

// AppendTo appends the payload.
func (m *ReaderCount) AppendTo(b []byte) []byte { return put32(b, m.Readers, 0) }

// ParseCount reads the payload.
func ParseCount(p []byte) (ReaderCount, error) {
	r := reader{rest: p}
	m := ReaderCount{r.u32()}
	r.zero(4)
	return m, r.end()
}

// printable makes any text fit for a name or a reason of at most n bytes.
func printable(text string, n int) string {
	b := []byte(text[:min(len(text), n)])
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}

func isPrintable(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}
