package main

import (
	"errors"
	"net/netip"
)

// nodeConfig is the JSON that tsn_new takes.
type nodeConfig struct {
	// Hostname is what the node asks to be called.
	Hostname string `json:"hostname"`
	// ControlURL is the login server.
	ControlURL string `json:"control_url"`
	// AuthKey is the pre-auth key. Never logged.
	AuthKey string `json:"auth_key"`
	// AcceptRoutes takes the subnet routes of other nodes.
	AcceptRoutes bool `json:"accept_routes"`
	// AdvertiseRoutes are offered to others.
	AdvertiseRoutes []netip.Prefix `json:"advertise_routes"`
	// HedgeMS is the least time after which a second SYN is sent beside the first; 0 turns hedging off.
	HedgeMS int64 `json:"hedge_ms"`
	// Verbose also logs what the client marks as verbose.
	Verbose bool `json:"verbose"`
}

func (c *nodeConfig) check() error {
	switch {
	case c.Hostname == "":
		return errors.New("hostname is empty")
	case c.ControlURL == "":
		return errors.New("control_url is empty; the client would fall back to Tailscale's own server")
	case c.AuthKey == "":
		return errors.New("auth_key is empty; the client would wait for a person to log in")
	case c.HedgeMS < 0:
		return errors.New("hedge_ms is negative")
	}
	return nil
}
