package deepspeed

import "fmt"

// Level says how bad a finding is.
type Level string

// The levels.
const (
	Error   Level = "error"   // DeepSpeed refuses the file, ends, or disobeys it
	Warning Level = "warning" // it works, but probably not as wanted
)

// Finding is one thing that is wrong.
type Finding struct {
	Line    int    `json:"line"`   // from 1
	Column  int    `json:"column"` // in characters, from 1
	Level   Level  `json:"level"`
	Key     string `json:"key,omitempty"` // with its sections, "aio.block_size"
	Message string `json:"message"`
}

func (f Finding) String() string {
	s := fmt.Sprintf("%d:%d: %s: ", f.Line, f.Column, f.Level)
	if f.Key != "" {
		s += f.Key + ": "
	}
	return s + f.Message
}
