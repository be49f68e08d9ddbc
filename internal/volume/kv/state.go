package kv

import (
	"encoding/json"
	"errors"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
)

// State is the store's state for the next daemon: a [handover.State]. Blocks and holds change, so they are kept apart.
func (s *Store) State() handover.State { return s.state() }

func (s *Store) state() *storeState {
	return &storeState{Directory: s.opt.Directory, Size: s.opt.Size, Memory: s.opt.Memory, Record: recordVersion, Frozen: s.frozen}
}

// storeState is the part of a volume that never changes while it is mounted.
type storeState struct {
	Directory    string
	Size, Memory int64
	Record       int    // version of the records in memory
	Frozen       string `json:",omitempty"` // see [Store]
}

// Section implements [handover.State].
func (*storeState) Section() (string, uint32) { return "kv", 1 }

// Save implements [handover.State].
func (s *storeState) Save() ([]byte, error) { return json.Marshal(s) }

// Adopt implements [handover.State]. A program that writes other records, or that was told other limits, is refused.
func (s *storeState) Adopt(section []byte) error {
	was := storeState{}
	if err := json.Unmarshal(section, &was); err != nil {
		return err
	}
	s.Frozen = was.Frozen
	if was != *s {
		return errors.New("the KV volume was mounted with other limits, or by a program with other records")
	}
	return nil
}
