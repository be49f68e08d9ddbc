package control

import "math"

// DraftID names a draft among those of its user. Its first writer draws it at random, so that a BEGIN whose answer was lost can be
// said again.
type DraftID [16]byte

// BeginAttach is a flag of BEGIN: the draft of this name that another process of the user has begun is wanted.
const BeginAttach = 1

// Limits of drafts.
const (
	MaxNewFiles = MaxObjects      // of one BEGIN or ADD: each has a descriptor
	MaxSums     = 16000           // of one SEAL
	SumChunk    = 4 << 20         // bytes that a sum is of
	maxName     = 4096            // bytes of a file's name
	maxSize     = math.MaxInt64   // of a file, bytes
	maxUmask    = 0o777           // and its bits
	maxParts    = math.MaxInt32   // of a checkpoint
	newFileSize = 16              // of its entry
	mostChunks  = maxSize>>22 + 1 // of a file
)

// NewFile is a file that a draft is to have.
type NewFile struct {
	Name string // below the checkpoint, slash-separated
	Size int64  // bytes
}

// Begin is BEGIN: a draft, and its first files.
type Begin struct {
	ID          DraftID
	Part, Parts uint32 // which part of the checkpoint this is, from 0, of how many
	Umask       uint32 // of the writer
	Flags       uint32
	Name        string // of the checkpoint
	Files       []NewFile
}

// AppendTo appends the payload.
func (m *Begin) AppendTo(b []byte) []byte {
	b = put32(append(b, m.ID[:]...), m.Part, m.Parts, m.Umask, m.Flags, uint32(len(m.Files)), uint32(len(m.Name)))
	for i := range m.Files {
		b = m.Files[i].appendTo(b)
	}
	b = append(b, m.Name...)
	return appendNames(b, m.Files)
}

// ParseBegin reads the payload.
func ParseBegin(p []byte) (Begin, error) {
	r := reader{rest: p}
	m := Begin{ID: r.id(), Part: r.u32(), Parts: r.u32(), Umask: r.u32(), Flags: r.u32()}
	n, length := r.u32(), r.u32()
	table := r.newFiles(n)
	m.Name = string(r.bytes(int(min(length, maxName+1))))
	m.Files = r.names(table)
	r.bad = r.bad || length > maxName || m.Umask > maxUmask || m.Parts > maxParts || m.Flags&^BeginAttach != 0
	return m, r.end()
}

// AddFiles is ADD: more files of a draft. Any process of the user who began it may say it.
type AddFiles struct {
	ID    DraftID
	Files []NewFile
}

// AppendTo appends the payload.
func (m *AddFiles) AppendTo(b []byte) []byte {
	b = put32(append(b, m.ID[:]...), uint32(len(m.Files)), 0)
	for i := range m.Files {
		b = m.Files[i].appendTo(b)
	}
	return appendNames(b, m.Files)
}

// ParseAddFiles reads the payload.
func ParseAddFiles(p []byte) (AddFiles, error) {
	r := reader{rest: p}
	m := AddFiles{ID: r.id()}
	n := r.u32()
	r.zero(4)
	m.Files = r.names(r.newFiles(n))
	return m, r.end()
}

func (f *NewFile) appendTo(b []byte) []byte {
	return put32(put64(b, uint64(f.Size)), uint32(len(f.Name)), 0)
}

func appendNames(b []byte, files []NewFile) []byte {
	for i := range files {
		b = append(b, files[i].Name...)
	}
	return b
}

// newFiles gives the table of n files.
func (r *reader) newFiles(n uint32) []byte {
	if n > MaxNewFiles {
		r.bad = true
		return nil
	}
	return r.bytes(int(n) * newFileSize)
}

// names reads the names of a table of files.
func (r *reader) names(entries []byte) []NewFile {
	table := reader{rest: entries}
	var files []NewFile
	for len(table.rest) > 0 && !r.bad {
		f := NewFile{Size: table.i64()}
		length := table.u32()
		table.zero(4)
		if length > maxName {
			r.bad = true
			break
		}
		f.Name = string(r.bytes(int(length)))
		files = append(files, f)
		r.bad = r.bad || table.bad
	}
	return files
}

// DraftFiles is DRAFT: it answers BEGIN and ADD, and a descriptor of each of the files comes with it, in order.
type DraftFiles struct {
	ID    DraftID
	First uint32 // the number of the first of them; the others follow
	Count uint32
}

// AppendTo appends the payload.
func (m *DraftFiles) AppendTo(b []byte) []byte { return put32(append(b, m.ID[:]...), m.First, m.Count) }

// ParseDraftFiles reads the payload.
func ParseDraftFiles(p []byte) (DraftFiles, error) {
	r := reader{rest: p}
	m := DraftFiles{r.id(), r.u32(), r.u32()}
	r.bad = r.bad || m.Count > MaxNewFiles
	return m, r.end()
}

// Seal is SEAL: checksums of a file, which is written. It may take several to name all of a large one.
type Seal struct {
	ID    DraftID
	File  uint32   // its number
	First uint64   // the chunk that the first sum is of
	Sums  []uint32 // CRC-32C of each [SumChunk] bytes
}

// AppendTo appends the payload.
func (m *Seal) AppendTo(b []byte) []byte {
	b = put32(append(b, m.ID[:]...), m.File, uint32(len(m.Sums)))
	return put32(put64(b, m.First), m.Sums...)
}

// ParseSeal reads the payload.
func ParseSeal(p []byte) (Seal, error) {
	r := reader{rest: p}
	m := Seal{ID: r.id(), File: r.u32()}
	n := r.u32()
	m.First = r.u64()
	if n > MaxSums || int64(n)*4 != int64(len(r.rest)) || m.First > mostChunks {
		return Seal{}, errMalformed
	}
	m.Sums = make([]uint32, n)
	for i := range m.Sums {
		m.Sums[i] = r.u32()
	}
	return m, r.end()
}

// PublishDraft is PUBLISH: the draft becomes the checkpoint, with so many files of so many bytes in all, or with none of them.
type PublishDraft struct {
	ID    DraftID
	Files uint32
	Bytes int64
}

// AppendTo appends the payload.
func (m *PublishDraft) AppendTo(b []byte) []byte {
	return put64(put32(append(b, m.ID[:]...), m.Files, 0), uint64(m.Bytes))
}

// ParsePublishDraft reads the payload.
func ParsePublishDraft(p []byte) (PublishDraft, error) {
	r := reader{rest: p}
	m := PublishDraft{ID: r.id(), Files: r.u32()}
	r.zero(4)
	m.Bytes = r.i64()
	return m, r.end()
}

// DropDraft is DROP: the draft is removed with its files.
type DropDraft struct{ ID DraftID }

// AppendTo appends the payload.
func (m *DropDraft) AppendTo(b []byte) []byte { return append(b, m.ID[:]...) }

// ParseDropDraft reads the payload.
func ParseDropDraft(p []byte) (DropDraft, error) {
	r := reader{rest: p}
	m := DropDraft{r.id()}
	return m, r.end()
}
