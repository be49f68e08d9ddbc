package drafts

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// prefix begins the names of drafts' descriptors at the holder of a mount. Then come the draft's key and one of
// these.
const (
	prefix      = "draft-"
	keptJournal = "journal"
	keptLock    = "lock"
	keptTree    = "tree"
	keptWriter  = "writer"
)

// Kinds of records in a draft's journal.
const (
	recordBegin uint32 = iota + 1
	recordFile
	recordSeal
	recordSealed // the number of a file whose bytes are on the disk, and which has its name
)

// begun is the first record: the data about a draft that the next daemon needs.
type begun struct {
	Name      string
	Part      checkpoint.Part
	Umask     uint32
	GID       uint32
	Groups    []uint32
	Capable   bool
	Began     time.Time
	Directory uint64 // its number, which the checkpoint keeps
}

// added is the record of a file.
type added struct {
	Name    string
	Size    int64
	Unnamed bool
}

// books are a draft's descriptors at the holder of a mount. nil keeps nothing.
type books struct {
	life    *handover.Life
	journal *handover.Journal
	name    string // of all files, up to the last dash
}

func (k *key) text() string {
	return prefix + strconv.FormatUint(uint64(k.uid), 10) + "-" + hex.EncodeToString(k.id[:]) + "-"
}

// parseKey reads a name that the holder has, and gives the rest of it.
func parseKey(name string) (k key, rest string, ok bool) {
	name, ok = strings.CutPrefix(name, prefix)
	parts := strings.SplitN(name, "-", 3)
	if !ok || len(parts) != 3 {
		return k, "", false
	}
	uid, err := strconv.ParseUint(parts[0], 10, 32)
	id, idErr := hex.DecodeString(parts[1])
	if err != nil || idErr != nil || len(id) != len(k.id) {
		return k, "", false
	}
	return key{uint32(uid), control.DraftID(id)}, parts[2], true
}

// keep has the holder keep a draft. The journal comes last: without it, nothing is gone on with.
func (d *clientDraft) keep() (b *books, err error) {
	b = &books{life: d.server.opt.Life, name: d.text()}
	if b.journal, err = handover.NewJournal(); err != nil {
		return nil, err
	}
	id, err := d.made.ID()
	if err != nil {
		return nil, err
	}
	record, err := json.Marshal(begun{d.name, d.part, d.umask, d.user.GID, d.user.Groups, d.user.Capable, d.began, id})
	if err == nil {
		err = b.journal.Append(recordBegin, record)
	}
	var lock *os.File
	if err == nil {
		lock, err = d.made.Lock()
	}
	if err != nil {
		return nil, errors.Join(err, b.journal.File().Close())
	}
	err = b.life.Keep(b.name+keptLock, lock)
	_ = lock.Close() // the life has its own
	if tree := d.made.Tree(); tree != nil && err == nil {
		err = b.life.Keep(b.name+keptTree, tree)
	}
	if d.writer != nil && err == nil {
		err = b.life.Keep(b.name+keptWriter, d.writer.pidfd)
	}
	if err == nil {
		err = b.life.Keep(b.name+keptJournal, b.journal.File())
	}
	if err != nil {
		b.end(0)
		return nil, err
	}
	return b, nil
}

// added records a file before its writer hears of it.
func (b *books) added(number int, f *file) error {
	if b == nil {
		return nil
	}
	if f.Read != nil {
		if err := b.life.Keep(b.name+strconv.Itoa(number), f.Read); err != nil {
			return err
		}
	}
	record, err := json.Marshal(added{f.Name, f.Size, f.Read != nil})
	if err != nil {
		return err
	}
	return b.journal.Append(recordFile, record)
}

// sealing records sums before their writer hears that they came.
func (b *books) sealing(m *control.Seal) error {
	if b == nil {
		return nil
	}
	return b.journal.Append(recordSeal, m.AppendTo(nil))
}

// sealed records that a file is, before its writer hears of it.
func (b *books) sealed(number int) error {
	if b == nil {
		return nil
	}
	return b.journal.Append(recordSealed, []byte(strconv.Itoa(number)))
}

// named has the holder forget a file that has its name.
func (b *books) named(number int) {
	if b != nil {
		b.life.Drop(b.name + strconv.Itoa(number))
	}
}

// end has the holder forget the draft. The journal goes first.
func (b *books) end(files int) {
	if b == nil {
		return
	}
	_ = b.journal.File().Close() // it is memory
	for _, part := range []string{keptJournal, keptWriter, keptTree, keptLock} {
		b.life.Drop(b.name + part)
	}
	for number := range files {
		b.life.Drop(b.name + strconv.Itoa(number))
	}
}

// Adopt goes on with the drafts of the daemon before. It is called once that is gone ([handover.Life.Prepared]), and before any session
// begins.
func (s *Server) Adopt() {
	if !s.opt.Life.Adopts() {
		return
	}
	found := map[key][]string{}
	for _, name := range s.opt.Life.Names() {
		if k, _, ok := parseKey(name); ok {
			found[k] = append(found[k], name)
		}
	}
	for k, names := range found {
		d, err := s.resume(k)
		switch {
		case err == nil:
			d.watch()
			continue
		case errors.Is(err, errPublished):
			s.mu.Lock()
			s.remember(k)
			s.mu.Unlock()
		default:
			s.opt.Log.Warn("a draft ends with the daemon before: its writer begins again", "draft", k.text(), "error", err)
		}
		for _, name := range names {
			s.opt.Life.Drop(name)
		}
	}
}

var errPublished = errors.New("it was published")

// resume goes on with one draft.
func (s *Server) resume(k key) (*clientDraft, error) {
	life, text := s.opt.Life, k.text()
	d := &clientDraft{key: k, server: s, byName: map[string]int{}, user: asuser.User{UID: k.uid}}
	d.books = &books{life: life, name: text}
	journal, lock := life.Took(text+keptJournal), life.Took(text+keptLock)
	if journal == nil || lock == nil {
		closeAll([]*os.File{journal, lock})
		return d, errors.New("the daemon was killed while it began it")
	}
	var start begun
	var err error
	d.books.journal = handover.ReadJournal(journal)
	err = d.books.journal.Replay(func(kind uint32, record []byte) error { return d.replay(kind, record, &start) })
	if err = errors.Join(err, d.books.journal.Cut()); err != nil {
		closeAll([]*os.File{journal, lock})
		return d, err
	}
	if found, err := s.opt.Home.Find(d.name); err == nil && found.ID == start.Directory {
		closeAll([]*os.File{journal, lock})
		return d, errPublished
	}
	owner := checkpoint.Owner{UID: k.uid, GID: start.GID, Mode: os.FileMode(0o777 &^ start.Umask)}
	if d.made, err = s.opt.Home.Adopt(d.name, d.part, owner, lock); err != nil {
		closeAll([]*os.File{journal, lock})
		return d, err
	}
	if err = d.made.Past(life.Took(text + keptTree)); err == nil {
		err = d.takeFiles()
	}
	if pidfd := life.Took(text + keptWriter); pidfd != nil && err == nil {
		d.writer = &process{pidfd: pidfd, pid: pidOf(int(pidfd.Fd()))}
		err = nonblocking(pidfd, d)
	} else if err == nil {
		err = errors.New("its writer's connection has ended, and the kernel does not tell its process")
	}
	if err == nil {
		_, err = s.add(d)
	}
	if err != nil {
		return d, errors.Join(err, d.made.Drop())
	}
	s.files.Book(k.uid, int64(len(d.files)))
	for _, f := range d.files {
		s.chunks.Book(k.uid, sumsOf(f.Size))
		if f.unnamed {
			s.unnamed.Book(k.uid, 1)
		}
	}
	return d, nil
}

// nonblocking lets the runtime wait for a process, which it does for files that are so when they are made.
func nonblocking(pidfd *os.File, d *clientDraft) error {
	p, err := processOf(pidfd)
	_ = pidfd.Close() // the holder has its own
	d.writer = p
	return err
}

// replay takes a record of the daemon before.
func (d *clientDraft) replay(kind uint32, record []byte, start *begun) error {
	switch kind {
	case recordBegin:
		if err := json.Unmarshal(record, start); err != nil {
			return err
		}
		d.name, d.part, d.umask, d.began = start.Name, start.Part, start.Umask, start.Began
		d.user.GID, d.user.Groups, d.user.Capable = start.GID, start.Groups, start.Capable
	case recordFile:
		var a added
		if err := json.Unmarshal(record, &a); err != nil {
			return err
		}
		d.byName[a.Name] = len(d.files)
		d.files = append(d.files, &file{Making: checkpoint.Making{Name: a.Name, Size: a.Size}, unnamed: a.Unnamed})
	case recordSeal:
		m, err := control.ParseSeal(record)
		if err != nil {
			return err
		}
		if int(m.File) >= len(d.files) || int64(m.First) > d.files[m.File].known {
			return fmt.Errorf("%w: sums of file %d come out of order", handover.ErrRefused, m.File)
		}
		f := d.files[m.File]
		f.asked = true
		if end := int64(m.First) + int64(len(m.Sums)); end >= f.known { // earlier versions recorded a part that came again
			f.sums, f.known = append(f.sums[:m.First], m.Sums...), end
		}
	case recordSealed:
		number, err := strconv.Atoi(string(record))
		if err != nil || number < 0 || number >= len(d.files) {
			return fmt.Errorf("%w: the journal of a draft seals a file that it does not have", handover.ErrRefused)
		}
		d.files[number].sealed = true
	default:
		return fmt.Errorf("%w: the journal of a draft has a record of an unknown kind", handover.ErrRefused)
	}
	return nil
}

// takeFiles takes files without names from the holder. Files that were being sealed are sealed when that is asked for again.
func (d *clientDraft) takeFiles() error {
	for number, f := range d.files {
		if f.unnamed {
			f.Read = d.books.life.Took(d.books.name + strconv.Itoa(number))
		}
		linked := f.unnamed && f.Read == nil && f.asked && f.known == sumsOf(f.Size) // by a daemon that did not record it
		switch f.Doubt = f.asked; {
		case f.sealed || linked:
			closeAll([]*os.File{f.Read})
			f.Read, f.sealed = nil, true
			if f.unnamed {
				f.unnamed = false
				d.books.named(number)
			}
		case f.unnamed && f.Read == nil:
			return fmt.Errorf("file %q is lost: the holder does not have it", f.Name)
		}
	}
	return nil
}
