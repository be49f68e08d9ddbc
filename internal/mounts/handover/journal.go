package handover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// Journal is a file in memory of records that only grows. A record that a kill has cut short was never there: its writer has not
// gone on. It is safe for concurrent use.
type Journal struct {
	file *os.File

	mu  sync.Mutex // guards end
	end int64
}

// A record is its length, its kind, CRC-32C of kind and bytes (u32 each, little-endian), and its bytes.
const recordHead = 12

// recordMax bounds a record.
const recordMax = 16 << 20

// NewJournal makes an empty journal.
func NewJournal() (*Journal, error) {
	f, err := NewMemory("journal")
	return &Journal{file: f}, err
}

// ReadJournal takes a journal over. [Journal.Replay] gives its records.
func ReadJournal(f *os.File) *Journal { return &Journal{file: f} }

// Replay gives each record that was not given yet to replay, up to the first that is not whole. The journal may be one that another
// daemon still appends to.
func (j *Journal) Replay(replay func(kind uint32, record []byte) error) error {
	info, err := j.file.Stat()
	if err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	b := make([]byte, max(0, info.Size()-j.end))
	if _, err := j.file.ReadAt(b, j.end); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the journal: %w", err)
	}
	for {
		kind, record := nextRecord(b)
		if record == nil {
			return nil
		}
		if err := replay(kind, record); err != nil {
			return err
		}
		b, j.end = b[recordHead+len(record):], j.end+recordHead+int64(len(record))
	}
}

// Cut takes away a record that is not whole. Nobody else may append any more.
func (j *Journal) Cut() error { return j.file.Truncate(j.end) }

// nextRecord returns the first record, nil where it is not whole.
func nextRecord(b []byte) (kind uint32, record []byte) {
	if len(b) < recordHead {
		return 0, nil
	}
	length, kind := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	if length > recordMax || int(length) > len(b)-recordHead {
		return 0, nil
	}
	record = b[recordHead : recordHead+length]
	if checksum(kind, record) != binary.LittleEndian.Uint32(b[8:]) {
		return 0, nil
	}
	return kind, record
}

func checksum(kind uint32, record []byte) uint32 {
	return castagnoli(append(binary.LittleEndian.AppendUint32(nil, kind), record...))
}

// File is the file, for [Life.Keep].
func (j *Journal) File() *os.File { return j.file }

// Append adds a record. When it returns, the next daemon will see it.
func (j *Journal) Append(kind uint32, record []byte) error {
	if len(record) > recordMax {
		return errors.New("append to the journal: the record is too long")
	}
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, recordHead+len(record)), uint32(len(record)))
	b = binary.LittleEndian.AppendUint32(b, kind)
	b = append(binary.LittleEndian.AppendUint32(b, checksum(kind, record)), record...)
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := j.file.WriteAt(b, j.end); err != nil {
		return fmt.Errorf("append to the journal: %w", err)
	}
	j.end += int64(len(b))
	return nil
}
