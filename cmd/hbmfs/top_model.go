package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/hbmfs/hbmfs/internal/aside"
	"github.com/hbmfs/hbmfs/internal/top"
)

// topModel is the live view: what it shows, and what is selected. Samples come as messages.
type topModel struct {
	ctx      context.Context // bubbletea's commands take none
	sampler  *top.Sampler
	interval time.Duration

	rows          []top.Row
	sampled       time.Time // zero before the first sample
	err           error
	by            string
	selected      string // mount point
	width, height int
}

// topSampled is a sample that was taken, topDue that the next one is due.
type (
	topSampled struct {
		samples []top.Sample
		at      time.Time
		err     error
	}
	topDue struct{}
)

func (m *topModel) Init() tea.Cmd { return m.sample }

// sample runs beside the view, one at a time: the next is due only after this one came.
func (m *topModel) sample() tea.Msg {
	samples, err := m.sampler.Sample(m.ctx)
	return topSampled{samples, time.Now(), err}
}

func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case topSampled:
		if m.err = msg.err; m.err != nil {
			return m, tea.Quit
		}
		m.rows, m.sampled = top.Rows(msg.samples, m.rows), msg.at
		top.Sort(m.rows, m.by)
		m.move(0)
		return m, tea.Tick(m.interval, func(time.Time) tea.Msg { return topDue{} })
	case topDue:
		return m, m.sample
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "esc", "ctrl+c":
			return m, tea.Quit
		case "up", "k":
			m.move(-1)
		case "down", "j":
			m.move(1)
		case "s":
			orders := top.Orders()
			m.by = orders[(slices.Index(orders, m.by)+1)%len(orders)]
			top.Sort(m.rows, m.by)
		}
	}
	return m, nil
}

// index is where the selected mount is, the first where it is gone.
func (m *topModel) index() int {
	return max(0, slices.IndexFunc(m.rows, func(r top.Row) bool { return r.MountPoint == m.selected }))
}

// move selects another mount.
func (m *topModel) move(by int) {
	if len(m.rows) > 0 {
		m.selected = m.rows[max(0, min(m.index()+by, len(m.rows)-1))].MountPoint
	}
}

func (m *topModel) View() tea.View {
	v := tea.NewView(m.text())
	v.AltScreen = true
	v.WindowTitle = "hbmfs top"
	return v
}

// Escapes of a terminal: reverse video, and back.
const (
	reverse = "\x1b[7m"
	plain   = "\x1b[m"
)

// detailLines is what the details of a mount get of the screen, however many mounts there are.
const detailLines = 12

// text is the screen. The terminal cuts what is too wide.
func (m *topModel) text() string {
	var b strings.Builder
	switch {
	case m.sampled.IsZero():
		return "hbmfs top: asking the mounts of this machine ..."
	case len(m.rows) == 0:
		return "hbmfs top: no hbmfs is mounted here. q quits"
	}
	broken := 0
	for _, r := range m.rows {
		if r.State != aside.OK {
			broken++
		}
	}
	fmt.Fprintf(&b, "hbmfs top  %s  mounts: %d, not well: %d  every %v  by %s   (q quits, s sorts, up and down select)\n\n",
		m.sampled.Format(time.TimeOnly), len(m.rows), broken, m.interval, m.by)
	var table strings.Builder
	if err := writeTable(&table, m.rows); err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(table.String(), "\n"), "\n")
	at := m.index()
	lines[1+at] = reverse + lines[1+at] + plain
	head, body := lines[0], lines[1:]
	room := max(1, m.height-4-detailLines)
	first := max(0, min(at-room/2, len(body)-room))
	body = body[first:min(first+room, len(body))]
	fmt.Fprintf(&b, "%s\n%s\n\n", head, strings.Join(body, "\n"))
	if err := writeDetails(&b, &m.rows[at]); err != nil {
		return err.Error()
	}
	return b.String()
}
