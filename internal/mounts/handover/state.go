package handover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// State is the data that a part of a daemon leaves to the next. It does not change while the mount lives. A kind of volume
// implements it for each of its parts. Data that changes while it lives goes to a [Journal], or to memory of its own that it
// gives [Life.Keep].
type State interface {
	// Section is the part's name in the file of states, and the version of Save's form.
	Section() (name string, version uint32)
	// Save returns the section.
	Save() ([]byte, error)
	// Adopt takes a section of the same version. It changes nothing outside of the part: an error refuses the hand-over.
	Adopt(section []byte) error
}

// ErrRefused says that a state cannot be adopted: nothing was changed.
var ErrRefused = errors.New("the state of the mount cannot be taken over")

// The file of states, little-endian: magic, version and number of sections (u32 each). Then for each section: the length of its name (u32), its
// version (u32), its length (u64), name, bytes. At the end CRC-32C of all before.
const (
	statesMagic   = "hbmfs-state\n"
	statesVersion = 1
)

func castagnoli(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }

// encode makes a file of states.
func encode(states []State) ([]byte, error) {
	sections, length := make([][]byte, len(states)), 0
	for i, s := range states {
		name, _ := s.Section()
		section, err := s.Save()
		if err != nil {
			return nil, fmt.Errorf("save %q: %w", name, err)
		}
		sections[i] = section
		length += len(name) + len(section) + 64
	}
	b := append(make([]byte, 0, length+64), statesMagic...)
	b = binary.LittleEndian.AppendUint32(b, statesVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(states)))
	for i, s := range states {
		name, version := s.Section()
		section := sections[i]
		b = binary.LittleEndian.AppendUint32(b, uint32(len(name)))
		b = binary.LittleEndian.AppendUint32(b, version)
		b = binary.LittleEndian.AppendUint64(b, uint64(len(section)))
		b = append(append(b, name...), section...)
	}
	return binary.LittleEndian.AppendUint32(b, castagnoli(b)), nil
}

type section struct {
	version uint32
	bytes   []byte
}

// decode reads a file of states.
func decode(b []byte) (map[string]section, error) {
	refuse := func(why string) (map[string]section, error) { return nil, fmt.Errorf("%w: %s", ErrRefused, why) }
	const head = len(statesMagic) + 8
	if len(b) < head+4 || !bytes.HasPrefix(b, []byte(statesMagic)) {
		return refuse("it is not one of hbmfs")
	}
	if v := binary.LittleEndian.Uint32(b[len(statesMagic):]); v != statesVersion {
		return refuse(fmt.Sprintf("it has format %d, and this program reads format %d", v, statesVersion))
	}
	end := len(b) - 4
	if castagnoli(b[:end]) != binary.LittleEndian.Uint32(b[end:]) {
		return refuse("its checksum is wrong")
	}
	count, b := binary.LittleEndian.Uint32(b[len(statesMagic)+4:]), b[head:end]
	all := map[string]section{}
	for range count {
		if len(b) < 16 {
			return refuse("it is cut short")
		}
		name, version, length := uint64(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])
		if b = b[16:]; name > uint64(len(b)) || length > uint64(len(b))-name {
			return refuse("it is cut short")
		}
		all[string(b[:name])] = section{version, b[name : name+length]}
		b = b[name+length:]
	}
	return all, nil
}

// adopt gives a state its section.
func adopt(all map[string]section, s State) error {
	name, version := s.Section()
	got, ok := all[name]
	switch {
	case !ok:
		return fmt.Errorf("%w: it has no part %q", ErrRefused, name)
	case got.version != version:
		return fmt.Errorf("%w: its part %q has version %d, and this program reads version %d", ErrRefused, name, got.version, version)
	}
	if err := s.Adopt(got.bytes); err != nil {
		return fmt.Errorf("%w: part %q: %w", ErrRefused, name, err)
	}
	return nil
}

// NewMemory makes a file in memory that processes can share.
func NewMemory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("hbmfs-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory for the hand-over: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// sealed makes a file in memory of bytes that nobody can change.
func sealed(name string, b []byte) (*os.File, error) {
	f, err := NewMemory(name)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(b)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("save the state: %w", err), f.Close())
	}
	return f, nil
}

// read returns all bytes of a file from any offset.
func read(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, info.Size())
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b, nil
}
